"""The file and the command of docs/mqtt-link.md, with other addresses, make a link that carries messages both ways."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdmq.server import ChildProcess
from tests.bridge.certificates import Certificates
from tests.bridge.uplink.support import HOST, TIMEOUT_S, Local, Mosquitto, Remote, payloads
from tests.support import Port, eventually, reserve_port
from tests.support.pages import blocks

PAGE = "docs/mqtt-link.md"


@pytest.fixture
def plain_port() -> Iterator[Port]:
    """Where the test itself talks to the other broker."""
    port = reserve_port()
    yield port
    port.release()


def passwords(folder: Path) -> tuple[Path, Path]:
    """Mosquitto's file, and that of the link."""
    tool = shutil.which("mosquitto_passwd")
    assert tool is not None, "no mosquitto_passwd: run `bash tools/needed.sh mosquitto`"
    theirs, ours = folder / "passwords", folder / "plant1.password"
    subprocess.run([tool, "-b", "-c", str(theirs), "plant1", "secret"], check=True, capture_output=True)
    ours.write_text("secret\n")
    return theirs, ours


def test_the_page_makes_a_link_that_carries_messages_both_ways(
    local: Local,
    mosquitto: Callable[..., Mosquitto],
    remote: Callable[..., Remote],
    tmp_path: Path,
    plain_port: Port,
) -> None:
    certificates = Certificates(tmp_path / "certificates")
    theirs, ours = passwords(tmp_path)
    broker = mosquitto(
        f"listener {plain_port.number} {HOST}\nlistener {{port}} {HOST}\npassword_file {theirs}\n"
        f"certfile {certificates.server}\nkeyfile {certificates.key}\n"
    )
    text = blocks(PAGE, "toml")[0].text
    for of_page, of_test in {
        "redis://127.0.0.1:6379/0": local.server.url,
        "broker.example:8883": f"localhost:{broker.port}",
        "/etc/holdmq/plant1.password": str(ours),
    }.items():
        assert of_page in text
        text = text.replace(of_page, of_test)
    (tmp_path / "link.toml").write_text(text)
    program, *words = shlex.split(blocks(PAGE, "sh")[0].text)
    assert program == "holdmq-bridge"
    link = ChildProcess(
        [
            sys.executable,
            "-m",
            "holdmq_bridge",
            *(word.replace("link.toml", str(tmp_path / "link.toml")) for word in words),
        ],
        log=tmp_path / "link.log",
        environment={**os.environ, "SSL_CERT_FILE": str(certificates.ca)},
    )
    there = remote(plain_port.number)
    there.listen("plant1/#")
    local.listen("commands/#")
    link.spawn()
    try:
        eventually(lambda: '"connected"' in link.log_text(), TIMEOUT_S, "a link")
        local.publish("local/sensors/1", b"21.5")
        there.publish("commands/1", b"stop", qos=2)
        eventually(lambda: payloads(there.messages) == [b"21.5"], TIMEOUT_S, "the message that goes out")
        eventually(lambda: payloads(local.received()) == [b"stop"], TIMEOUT_S, "the message that comes in")
        assert there.messages[0].topic == "plant1/sensors/1"
    finally:
        assert link.stop() == 0
