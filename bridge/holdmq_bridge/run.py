"""`make run` and `holdmq serve`: a server with the module, a bridge and the console, in the foreground until Ctrl-C.

Starts both as child processes, prints how to connect, waits, and stops the bridge first, so that its clients' last
messages still reach the server.  It holds no data itself.

Invariants
    1. A data folder belongs to one run: it is locked while the server runs.
    2. If a part ends by itself, the others are stopped and the exit status is not 0.
    3. A second Ctrl-C ends everything at once.
    4. A terminal that is closed (SIGHUP) is a Ctrl-C. What is printed then goes nowhere and stops nothing.
"""

import contextlib
import fcntl
import importlib.util
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import click
import redis

from holdmq.password import PASSWORD_FILE, with_password, without_password
from holdmq.server import (
    QUEUE_DIRECTIVES,
    ChildProcess,
    PortTakenError,
    ServerError,
    ServerProcess,
    check_module,
    configuration,
    find_module,
    find_server,
    memory_directives,
    next_free_port,
    write_configuration,
)

IDLE_START_S = 30.0  # bridge or console: without a connection accepted, and without any work
LONGEST_START_S = 600.0  # of the two, however much they work: on a busy machine they load for minutes
SERVER_READY_TIMEOUT_S = 3600.0  # an append-only file of many gigabytes is loaded first
POLL_S = 0.2
START_TRIES = 10
LOG_LINES_SHOWN = 20
INTERRUPTED = 128 + signal.SIGINT  # the exit status as in a shell
BRIDGE_PACKAGES = ("argon2", "h11", "prometheus_client", "pydantic_settings", "uvloop", "wsproto")  # the extra "bridge"
CONSOLE_PACKAGES = ("argon2", "fastapi", "holdmq_console", "jinja2", "multipart", "pydantic_settings", "uvicorn")
CONSOLE_SCRIPT = Path("static", "vendor", "htmx.min.js")
CONSOLE_HOST = "127.0.0.1"  # beyond loopback it is started by itself, with users
PORT = click.IntRange(1, 65535)
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (what to connect to when it listens everywhere)


@dataclass(frozen=True)
class Options:
    """The options of the command line.

    Attributes:
        host: the address that server and bridge listen on.
        redis_port: the first port to try for the server.
        mqtt_port: the first port to try for the bridge.
        console_port: the first port to try for the console.
        data: the server's data folder.
        redis_url: a server that runs already; then none is started.
    """

    host: str
    redis_port: int
    mqtt_port: int
    console_port: int
    data: Path
    redis_url: str | None


def reachable(host: str) -> str:
    """Return the address at which a part that listens on `host` is reached from this machine."""
    return ANY_ADDRESS.get(host, host)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process, and make it if it is not there.

    Raises:
        ServerError: another process holds it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise _unusable(folder, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServerError(f"another HoldMQ keeps its data in {folder}: give one of them --data FOLDER") from error
        yield


def _unusable(folder: Path, error: OSError) -> ServerError:
    return ServerError(f"the data folder {folder} cannot be used: {error}; name another with --data")


def check_data(folder: Path) -> None:
    """Check that the server reads all data that the folder holds.

    Raises:
        ServerError: there is a snapshot alone, over which a server with an append-only file would pass silently.
    """
    if (folder / "dump.rdb").exists() and not (folder / "appendonlydir").exists():
        raise ServerError(
            f"{folder} holds a snapshot (dump.rdb) and no append-only file (appendonlydir): the server would start "
            "empty; turn the snapshot into an append-only file as docs/backup.md says, or move it away"
        )


def start_server(options: Options) -> ServerProcess:
    """Start a server with the module and an append-only file on the first free port.

    Raises:
        ServerError: it could not be started.
    """
    check_data(options.data)
    command, module, first = [find_server()], find_module(), options.redis_port
    for _ in range(START_TRIES):
        port = next_free_port(options.host, first)
        server = ServerProcess(
            command,
            options.data / "server.conf",
            port=port,
            host=reachable(options.host),
            log=options.data / "server.log",
        )
        lines = configuration(port=port, host=options.host, directory=options.data, module=module, aof=True)
        try:
            write_configuration(server.config, lines, first=(*QUEUE_DIRECTIVES, *memory_directives()))
        except OSError as error:
            raise _unusable(options.data, error) from error
        try:
            server.start(SERVER_READY_TIMEOUT_S)
        except PortTakenError:  # taken after the check
            first = port + 1
            continue
        if port != options.redis_port:
            click.echo(f"Port {options.redis_port} is taken; the server listens on {port}.")
        return server
    raise ServerError(f"the ports from {options.redis_port} on are taken as fast as they are tried")


def start_bridge(options: Options, redis_url: str) -> tuple[ChildProcess, int]:
    """Start the bridge on the first free port, and return it with the port when it accepts connections.

    Raises:
        ServerError: it ended, or accepted nothing in time (see `_wait_until_it_accepts`).
    """
    port = next_free_port(options.host, options.mqtt_port)
    if port != options.mqtt_port:
        click.echo(f"Port {options.mqtt_port} is taken; the bridge listens on {port}.")
    arguments = ["--host", options.host, "--port", str(port), "--redis", redis_url]
    bridge = ChildProcess([sys.executable, "-m", "holdmq_bridge", *arguments], log=None)
    bridge.spawn()
    try:
        _wait_until_it_accepts("bridge", bridge, reachable(options.host), port)
    except BaseException:
        bridge.kill()
        raise
    return bridge, port


def has_console() -> bool:
    """Whether everything that the console needs is installed, the scripts of its pages too (`make assets`)."""
    if any(importlib.util.find_spec(name) is None for name in CONSOLE_PACKAGES):
        return False
    found = importlib.util.find_spec("holdmq_console")
    return found is not None and any(
        (Path(place) / CONSOLE_SCRIPT).exists() for place in found.submodule_search_locations or ()
    )


def start_console(options: Options, redis_url: str) -> tuple[ChildProcess, int]:
    """Start the console on the first free port, and return it with the port when it accepts connections.

    Raises:
        ServerError: it ended, or accepted nothing in time.
    """
    port = next_free_port(CONSOLE_HOST, options.console_port)
    if port != options.console_port:
        click.echo(f"Port {options.console_port} is taken; the console listens on {port}.")
    arguments = ["--url", redis_url, "console", "--host", CONSOLE_HOST, "--port", str(port)]
    console = ChildProcess([sys.executable, "-m", "holdmq", *arguments], log=None)
    console.spawn()
    try:
        _wait_until_it_accepts("console", console, CONSOLE_HOST, port)
    except BaseException:
        console.kill()
        raise
    return console, port


def _wait_until_it_accepts(name: str, part: ChildProcess, host: str, port: int) -> None:
    begun = worked_at = time.monotonic()
    work = 0
    while True:
        if not part.running:
            raise ServerError(f"the {name} ended with status {part.returncode}; its output is above")
        with contextlib.suppress(OSError):
            socket.create_connection((host, port), 1).close()
            return
        now, work_before = time.monotonic(), work
        work = part.processor_ticks
        if work > work_before:
            worked_at = now
        if now > min(worked_at + IDLE_START_S, begun + LONGEST_START_S):
            raise ServerError(
                f"the {name} accepted no connection on {host}:{port} in {now - begun:.0f} s, "
                f"and has done nothing for {now - worked_at:.0f} s"
            )
        time.sleep(POLL_S)


def check_installed() -> None:
    """Check that what the bridge needs is installed.

    Raises:
        ServerError: it is not; the text says how to install it.
    """
    missing = [name for name in BRIDGE_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ServerError(
            f"the MQTT bridge needs packages that are not installed ({', '.join(missing)}): "
            "pip install 'holdmq[bridge,server]'"
        )


def check_server(url: str) -> None:
    """Check that the server at the URL answers and has the module.

    Raises:
        ServerError: it does not, or has not.
    """
    try:
        with redis.Redis.from_url(with_password(url), socket_timeout=5) as client:
            client.ping()
            check_module(client)
    except redis.AuthenticationError as error:
        raise ServerError(
            f"the server at {without_password(url)} asks for another password; expected a file that holds it, named by "
            f"{PASSWORD_FILE} ({error})"
        ) from error
    except redis.RedisError as error:
        raise ServerError(f"the server at {without_password(url)} does not serve: {error}") from error
    except ValueError as error:
        raise ServerError(f"--redis {without_password(url)}: {error}") from error


def how_to_connect(url: str, host: str, mqtt_port: int, console_port: int | None = None) -> str:
    """Return the first steps for a newcomer."""
    console = "" if console_port is None else f"\n  Console http://{CONSOLE_HOST}:{console_port}"
    python = Path(sys.executable)
    shown = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    mqtt = f"-h {host} -p {mqtt_port}"
    cli = shutil.which("redis-cli") or shutil.which("valkey-cli")
    cli = f"{Path(cli).name if cli else 'redis-cli'} -u {url}"
    program = f'import redis; r = redis.from_url("{url}"); r.publish("ch", "hello"); print(r.lrange("ch", 0, -1))'
    return f"""
HoldMQ serves.  Ctrl-C stops it.

  Redis   {url}
  MQTT    mqtt://{host}:{mqtt_port}{console}

A message without a subscriber is kept, and handed to the next one:
  {cli} PUBLISH weather/JFK 12.5
  {cli} SUBSCRIBE weather/JFK

The same from Python, with any client:
  {shown} -c '{program}'

MQTT with a session that outlives the connection (-i, -c): stop the first, publish, start it again.
  mosquitto_sub {mqtt} -i me -c -q 1 -v -t 'weather/#'
  mosquitto_pub {mqtt} -q 1 -t weather/EWR -m 12.8
"""


def wait(parts: dict[str, ChildProcess]) -> str | None:
    """Wait for Ctrl-C (None), or until a part ends by itself; return which one did."""
    try:
        while True:
            for name, part in parts.items():
                if not part.running:
                    return name
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        return None


def serve(options: Options) -> None:
    """Run everything until Ctrl-C.

    Raises:
        ServerError: a part could not be started, or ended by itself.
    """
    check_installed()
    with contextlib.ExitStack() as stack:
        parts: dict[str, ChildProcess] = {}
        url = options.redis_url
        if url is None:
            stack.enter_context(locked(options.data))
            server = parts["server"] = start_server(options)
            stack.callback(_stop, "server", server)
            url = f"redis://{server.host}:{server.port}"
        check_server(url)
        parts["bridge"], mqtt_port = start_bridge(options, url)
        stack.callback(_stop, "bridge", parts["bridge"])
        console_port: int | None = None
        if options.console_port and not has_console():
            click.echo("Without the web console: it needs pip install 'holdmq[console]'; in a checkout, make assets.")
        elif options.console_port:
            parts["console"], console_port = start_console(options, url)
            stack.callback(_stop, "console", parts["console"])
        click.echo(how_to_connect(without_password(url), reachable(options.host), mqtt_port, console_port))
        if options.redis_url is None:
            click.echo(f"Data and the server's log are in {options.data} (append-only file, synced before each reply).")
        ended = wait(parts)
        if ended is not None:
            tail = "\n".join(parts[ended].log_text(since_start=True).splitlines()[-LOG_LINES_SHOWN:])
            raise ServerError(f"the {ended} ended with status {parts[ended].returncode}\n{tail}".rstrip())


def _stop(name: str, part: ChildProcess) -> None:
    """Stop a part in its own time; at another Ctrl-C at once."""
    if not part.running:
        return
    _say(f"Stopping the {name} ...")
    try:
        part.stop()
    except KeyboardInterrupt:
        part.kill()


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        click.echo(text)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _hang_up(_number: int, _frame: FrameType | None) -> None:
    # The terminal sends the signal, and then its shell: the second one does not ask for haste.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise KeyboardInterrupt


@click.command("serve")
@click.option(
    "--redis",
    "redis_url",
    help="Use the running server at this URL instead of starting one. It must have the module loaded.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    "redis_port",
    default=6379,
    show_default=True,
    type=PORT,
    help="Port of the server. If it is taken, the next free port.",
)
@click.option(
    "--mqtt-port",
    default=1883,
    show_default=True,
    type=PORT,
    help="Port of the bridge. If it is taken, the next free port.",
)
@click.option(
    "--console-port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port of the web console on 127.0.0.1. If it is taken, the next free port. 0: no console.",
)
@click.option(
    "--data",
    default=Path("data"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the data and the log of the server.",
)
def command(redis_url: str | None, host: str, redis_port: int, mqtt_port: int, console_port: int, data: Path) -> None:
    """Run a server with the module, the MQTT bridge and the web console, in the foreground until Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, _hang_up)
    signal.signal(signal.SIGINT, _interrupt)  # also where a shell started it in the background, with SIGINT ignored
    try:
        serve(Options(host, redis_port, mqtt_port, console_port, data.absolute(), redis_url))
    except (ServerError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:  # before everything ran
        sys.exit(INTERRUPTED)
    _say("Stopped.")


if __name__ == "__main__":
    command(prog_name="make run")
