"""Tries an installed HoldMQ as a newcomer would: `holdmq serve`, a channel, an MQTT client that comes back, Ctrl-C.

    environment/bin/python -I tools/try_package.py

HOLDMQ_SERVER names another server than the embedded one.  Exit status 0: everything came out right.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as mqtt
import redis
from paho.mqtt.enums import CallbackAPIVersion

import holdmq

BIN = Path(sys.prefix) / "bin"
READY_S = 60.0
STEP_S = 20.0


def check(what: str, *, holds: bool) -> None:
    """Ends the program unless it holds."""
    print(f"  [{'ok' if holds else 'WRONG'}] {what}", flush=True)
    if not holds:
        sys.exit(1)


def command(*words: str) -> str:
    """What `holdmq` prints."""
    done = subprocess.run([BIN / "holdmq", *words], capture_output=True, text=True, timeout=STEP_S, check=False)
    if done.returncode:
        sys.exit(f"holdmq {' '.join(words)}: {done.stderr}")
    return done.stdout.strip()


def within(seconds: float, condition: Callable[[], object]) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def served(service: "subprocess.Popen[str]") -> str:
    """What the service prints until it serves."""
    assert service.stdout is not None
    printed = ""
    while "mqtt://" not in printed:
        line = service.stdout.readline()
        if not line:
            sys.exit(f"holdmq serve ended with status {service.wait()}:\n{printed}")
        printed += line
    threading.Thread(target=service.stdout.read, daemon=True).start()  # the rest
    return printed


def client_of(port: int, *, clean: bool) -> mqtt.Client:
    """A connected client with the one name."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="newcomer", clean_session=clean)
    client.connect("127.0.0.1", port)
    client.loop_start()
    check("an MQTT client connects", holds=within(STEP_S, client.is_connected))
    return client


def end(client: mqtt.Client) -> None:
    """Disconnects it."""
    client.disconnect()
    client.loop_stop()


def try_channels(url: str) -> None:
    """A message without a subscriber is there afterwards."""
    check("nobody hears a message", holds=command("--url", url, "channel", "publish", "weather", "12.5") == "0")
    check("it is kept", holds="12.5" in command("--url", url, "channel", "backlog", "weather"))


def try_mqtt(url: str, port: int) -> None:
    """A message published while a client is away reaches it."""
    first = client_of(port, clean=False)
    subscribed = threading.Event()
    first.on_subscribe = lambda *_: subscribed.set()
    first.subscribe("weather/#", 1)
    check("it subscribes", holds=subscribed.wait(STEP_S))
    end(first)
    check(
        "a publish reaches its session",
        holds=command("--url", url, "topic", "publish", "--qos", "1", "weather/jfk", "9") == "1",
    )
    got: list[bytes] = []
    second = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="newcomer", clean_session=False)
    second.on_message = lambda _client, _data, message: got.append(bytes(message.payload))
    second.connect("127.0.0.1", port)
    second.loop_start()
    check("it comes back and gets it", holds=within(STEP_S, lambda: got == [b"9"]))
    end(second)


def main() -> None:
    """Tries everything."""
    place = Path(holdmq.__file__)
    check(f"the package is the installed one: {place.parent}", holds=place.is_relative_to(sys.prefix))
    module = Path(command("module-path"))
    check(f"so is the module: {module}", holds=module.is_file() and module.is_relative_to(sys.prefix))
    with tempfile.TemporaryDirectory() as folder:
        words = ["serve", "--port", "17379", "--mqtt-port", "17883", "--data", folder]
        service = subprocess.Popen(
            [BIN / "holdmq", *words], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        try:
            printed = served(service)
            url = re.search(r"redis://\S+", printed)
            port = re.search(r"mqtt://[^:]+:(\d+)", printed)
            assert url is not None
            assert port is not None
            with redis.Redis.from_url(url[0]) as client:
                server = client.info("server")
            check(f"holdmq serve started {server.get('valkey_version') or server['redis_version']}", holds=True)
            try_channels(url[0])
            try_mqtt(url[0], int(port[1]))
            service.send_signal(signal.SIGINT)
            check("Ctrl-C ends it", holds=service.wait(STEP_S) == 0)
        finally:
            service.kill()
            service.wait()


if __name__ == "__main__":
    main()
