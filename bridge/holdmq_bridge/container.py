"""The entry point of the image: `server`, `bridge`, `console`, `cluster` start as root and run as the user holdmq.

    holdmq-container server                  the server with the module, data and configuration in HOLDMQ_DATA
    holdmq-container bridge OPTION...        holdmq-bridge OPTION...
    holdmq-container console OPTION...       holdmq console OPTION..., for the server at HOLDMQ_URL
    holdmq-container cluster HOST:PORT...    makes a cluster of servers that run (cluster_setup.py), and ends
    holdmq-container PROGRAM ARGUMENT...     any other program

The server's configuration is HOLDMQ_DATA/server.conf, where CONFIG REWRITE writes.  The lines of HOLDMQ_CONFIG and of
the file HOLDMQ_CONFIG_FILE override it at each start.  HOLDMQ_CONFIG overrides the file.

Invariants
    1. Nothing serves without a password, unless HOLDMQ_ALLOW_NO_PASSWORD=yes.
    2. The password is in no command line, and in no file that others can read.
    3. The program replaces this process: signals of the container reach it.
"""

import os
import pwd
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from holdmq.server import (
    QUEUE_DIRECTIVES,
    allocator_environment,
    configuration,
    find_module,
    find_server,
    memory_directives,
    quoted,
    write_configuration,
)

USER = "holdmq"
PORT = 6379
PRIVATE = 0o600
CONFIG_FILE = "/etc/holdmq/server.conf"
SECRET_FILE = "/run/secrets/holdmq_password"  # noqa: S105 - where the secret is, not the secret
OWN_SECRET_FILE = Path("/run/holdmq/password")
LOGFILE_TO_OUTPUT = 'logfile ""'
# For a new configuration: CONFIG SET and CONFIG REWRITE change them permanently.  `everysec` is quicker on slow disks,
# and loses up to a second of acknowledged messages when the machine dies.
FIRST = ("appendonly yes", "appendfsync always", *QUEUE_DIRECTIVES)


class RefusedError(Exception):
    """The container does not start. The text says why, and what to do."""


def password_of(environment: Mapping[str, str]) -> str | None:
    """Returns the server's password; None: HOLDMQ_ALLOW_NO_PASSWORD=yes.

    Raises:
        RefusedError: there is neither a password nor the permission to do without.
    """
    given = environment.get("HOLDMQ_PASSWORD")
    if given:
        return given
    path = Path(environment.get("HOLDMQ_PASSWORD_FILE") or SECRET_FILE)
    if path.is_dir():
        raise RefusedError(f"{path} is a folder: the file of the secret is not there on the host")
    try:
        password = path.read_text().strip()
    except FileNotFoundError:
        password = ""
    except OSError as error:
        raise RefusedError(f"the password cannot be read: {error}") from error
    if password:
        return password
    if environment.get("HOLDMQ_ALLOW_NO_PASSWORD") == "yes":
        return None
    raise RefusedError(
        f"no password for the server; expected a secret in {path} (or a file named by HOLDMQ_PASSWORD_FILE, or the "
        "variable HOLDMQ_PASSWORD), or HOLDMQ_ALLOW_NO_PASSWORD=yes in a network where everybody may do everything"
    )


def lines_of(environment: Mapping[str, str]) -> list[str]:
    """Returns the operator's lines of the configuration: those of the file, then those of HOLDMQ_CONFIG.

    Raises:
        RefusedError: the file that HOLDMQ_CONFIG_FILE names cannot be read.
    """
    named = environment.get("HOLDMQ_CONFIG_FILE")
    path = Path(named or CONFIG_FILE)
    try:
        text = path.read_text() if named or path.exists() else ""
    except OSError as error:
        raise RefusedError(f"the server's configuration cannot be read: {error}") from error
    lines = [*text.splitlines(), *environment.get("HOLDMQ_CONFIG", "").splitlines()]
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def write_server_configuration(data: Path, environment: Mapping[str, str]) -> Path:
    """Writes the server's configuration and returns its path.

    Raises:
        RefusedError: see password_of and lines_of.
    """
    password = password_of(environment)
    path = data / "server.conf"
    own = [
        line
        for line in configuration(port=PORT, directory=data, host="*", module=find_module())
        if not line.startswith("appendonly")
    ]
    own += ["protected-mode no"] if password is None else ["protected-mode yes", f"requirepass {quoted(password)}"]
    lines = lines_of(environment)
    if password is not None and ["cluster-enabled", "yes"] in (line.lower().split() for line in lines):
        own.append(f"masterauth {quoted(password)}")  # each node may become a replica of another one
    if path.exists():  # the hash of a former password, as CONFIG REWRITE writes it, must not outlive that
        kept = [line for line in path.read_text().splitlines() if line.split()[:2] != ["user", "default"]]
        kept = [line for line in kept if password is not None or not line.startswith("requirepass ")]
        path.write_text("\n".join([*kept, ""]))
    else:
        path.touch(PRIVATE)
        path.write_text("\n".join([*FIRST, *memory_directives(), ""]))
    write_configuration(path, [*own, *lines])
    path.chmod(PRIVATE)
    return path


def become(user: str) -> None:
    """Gives up the rights of root. Does nothing for another user."""
    if os.geteuid() != 0:
        return
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ["HOME"] = entry.pw_dir


def hand_over(path: Path) -> None:
    """Makes the user the owner of a file, or of a folder with its content."""
    if os.geteuid() != 0:
        return
    for one in (path, *path.rglob("*")):
        if one.owner() != USER:
            shutil.chown(one, USER, USER)


def start_server() -> None:
    """Replaces this process by the server."""
    data = Path(os.environ.get("HOLDMQ_DATA", "/data"))
    data.mkdir(parents=True, exist_ok=True)
    path = write_server_configuration(data, os.environ)
    hand_over(data)
    become(USER)
    os.umask(0o077)  # CONFIG REWRITE writes the password, too
    os.chdir(data)
    server = find_server()
    os.execve(server, [str(server), str(path)], {**os.environ, **allocator_environment()})  # noqa: S606 - no shell is wanted


def start_client(name: str, *words: str) -> None:
    """Replaces this process by a program that uses the server.

    Copies the password to a file: often only root can read a secret.
    """
    password = password_of(os.environ)
    if password is not None and os.geteuid() == 0:
        OWN_SECRET_FILE.parent.mkdir(parents=True, exist_ok=True)
        OWN_SECRET_FILE.touch(PRIVATE)
        OWN_SECRET_FILE.write_text(password)
        hand_over(OWN_SECRET_FILE.parent)
        os.environ["HOLDMQ_PASSWORD_FILE"] = str(OWN_SECRET_FILE)
        os.environ.pop("HOLDMQ_PASSWORD", None)
    become(USER)
    program = shutil.which(name)
    if program is None:
        raise RefusedError(f"there is no {name} in PATH")
    os.execv(program, [program, *words])  # noqa: S606 - as above


def main() -> None:
    """Starts the program that the arguments name."""
    words = sys.argv[1:] or ["server"]
    try:
        if words == ["server"]:
            start_server()
        elif words[0] == "bridge":
            start_client("holdmq-bridge", *words[1:])
        elif words[0] == "console":
            start_client("holdmq", *words)
        elif words[0] == "cluster":
            start_client("python3", "-m", "holdmq_bridge.cluster_setup", *words[1:])
        else:
            os.execvp(words[0], words)  # noqa: S606 - as above
    except (RefusedError, OSError) as error:
        sys.exit(f"holdmq: {error}")


if __name__ == "__main__":
    main()
