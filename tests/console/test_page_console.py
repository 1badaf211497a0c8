"""docs/console.md: every block runs as it stands, with other ports."""

import os
import shutil
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import redis
import trustme

from holdmq import HoldMQ, Message
from holdmq.server import ChildProcess
from holdmq_bridge.auth.store import Store
from holdmq_console.keys import AUDIT
from tests.console.support import API, PASSWORD, Api, ConsoleProcess
from tests.support import Server, embedded_kinds, eventually, reserve_port
from tests.support.pages import REPOSITORY, blocks

server_kinds = embedded_kinds

PAGE = "docs/console.md"
BIN = Path(sys.executable).parent


def of_kind(kind: str) -> str:
    [block] = blocks(PAGE, kind)
    return block.text


def environment(server: Server, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOLDMQ_BRIDGE_REDIS": server.url,
        "PYTHONUNBUFFERED": "1",
        **more,
    }


def run(text: str, server: Server, given: str = "", **more: str) -> str:
    done = subprocess.run(
        ["bash", "-euc", text],  # noqa: S607 (the reader's)
        input=given,
        env=environment(server, **more),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_console_is_started_set_up_and_asked(
    server: Server, client: redis.Redis, console: ConsoleProcess, api: Api
) -> None:
    run(of_kind("sh setup"), server, PASSWORD + "\n")
    assert Store(client).user("root").roles == ("admin", "payloads")
    hold = HoldMQ(client)
    session = hold.session("dev-1")
    session.open("owner", expiry=60)
    session.deliver(*(Message(topic="t", payload=b"x", qos=1) for _ in range(8)))
    session.close()
    api.log_in("root")
    token = api.ask("POST", "/tokens", 201, json={"name": "t", "rights": ["view", "admin"]})["token"]
    text = of_kind("sh api").replace("127.0.0.1:8080", f"127.0.0.1:{console.port}")
    told = run(text, server, TOKEN=token)
    assert '"client_id":"dev-1"' in told
    assert '{"messages":1}' in told
    assert [entry.serial for entry in session.entries()] == [1, 2, 3, 4, 5, 6, 8]


def test_it_serves_http_and_https(server: Server, tmp_path: Path) -> None:
    run(of_kind("sh setup"), server, PASSWORD + "\n")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "server.key")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    trust = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    for kind, scheme in (("sh", "http"), ("sh https", "https")):
        with reserve_port() as port:
            text = of_kind(kind).replace("redis://127.0.0.1:6379", server.url)
            process = ChildProcess(
                ["bash", "-euc", f"cd '{tmp_path}'\nexec {text}"],
                log=tmp_path / f"{scheme}.log",
                environment=environment(server, HOLDMQ_CONSOLE_PORT=str(port.number)),
            )
            process.spawn()
            try:
                url = f"{scheme}://127.0.0.1:{port.number}"
                answer = eventually(lambda url=url: asked(url, trust), 90, url)  # type: ignore[misc]
                assert answer.status_code == 401
                login = httpx.post(f"{url}/login", data={"user": "root", "password": PASSWORD}, verify=trust)
                assert ("Secure" in login.headers["set-cookie"]) == (scheme == "https")
                if scheme == "https":
                    renewed(authority, tmp_path, port.number, trust)
            finally:
                process.kill()


def test_it_serves_through_a_reverse_proxy(server: Server, client: redis.Redis, hold: HoldMQ, tmp_path: Path) -> None:
    run(of_kind("sh setup"), server, PASSWORD + "\n")
    authority = trustme.CA()
    certificate = authority.issue_cert("console.example.org")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "server.key")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    trust = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    hold.session("a/b").open("owner", expiry=60)
    with reserve_port() as port, reserve_port() as outer:
        text = of_kind("sh proxy").replace("redis://127.0.0.1:6379", server.url)
        console = ChildProcess(
            ["bash", "-euc", f"exec {text}"],
            log=tmp_path / "console.log",
            environment=environment(server, HOLDMQ_CONSOLE_PORT=str(port.number)),
        )
        proxy = nginx(tmp_path, of_kind("conf nginx"), port.number, outer.number)
        try:
            console.spawn()
            eventually(lambda: asked(f"http://127.0.0.1:{port.number}", trust), 90, "a console")
            proxy.spawn()
            eventually(lambda: reached(outer.number), 30, "a proxy")
            host = f"console.example.org:{outer.number}"
            with httpx.Client(
                base_url=f"https://127.0.0.1:{outer.number}",
                headers={"Host": host, "Origin": f"https://{host}", "Sec-Fetch-Site": "same-origin"},
                verify=trust,
                timeout=20,
            ) as browser:
                through_a_proxy(browser, hold)
        finally:
            proxy.kill()
            console.kill()
    entries: Any = client.xrange(AUDIT)
    assert {entry[b"address"] for _, entry in entries} == {b"127.0.0.1"}


def through_a_proxy(browser: httpx.Client, hold: HoldMQ) -> None:
    """Logs in, changes something, and watches."""
    sni = {"sni_hostname": "console.example.org"}
    login = browser.post("/login", data={"user": "root", "password": PASSWORD}, extensions=sni)
    assert login.status_code == 303, login.text
    assert "Secure" in login.headers["set-cookie"]
    cookie = {"Cookie": login.headers["set-cookie"].partition(";")[0]}
    page = browser.get("/sessions", headers=cookie, extensions=sni)
    assert "a/b" in page.text
    csrf = page.text.partition('name="csrf" value="')[2].partition('"')[0]
    assert browser.get(f"{API}/sessions/a%2Fb", headers=cookie, extensions=sni).json()["client_id"] == "a/b"
    drop = browser.post("/sessions/a%2Fb/drop", data={"csrf": csrf}, headers=cookie, extensions=sni)
    assert (drop.status_code, drop.headers["location"]) == (303, "/sessions?note=dropped")
    with browser.stream("GET", "/live/events?filter=t", headers=cookie, extensions=sni) as live:
        lines = live.iter_lines()
        assert next(lines) == "event: open"
        hold.topics.publish("t", b"x")
        assert "event: message" in lines
    foreign = {**cookie, "Origin": "https://elsewhere.example.org", "X-CSRF-Token": csrf}
    assert browser.put(f"{API}/bans/x", json={}, headers=foreign, extensions=sni).status_code == 403
    assert browser.get("/login", headers={"Host": "elsewhere.example.org"}, extensions=sni).status_code == 421


def nginx(folder: Path, text: str, inner: int, outer: int) -> ChildProcess:
    """The proxy of the page, on another port."""
    unpacked = REPOSITORY / ".cache/debian/nginx/root/usr/sbin/nginx"
    program = shutil.which("nginx") or (str(unpacked) if unpacked.exists() else None)
    assert program is not None, "no nginx: make build/nginx.stamp"
    block = text.replace("listen 443", f"listen 127.0.0.1:{outer}").replace("127.0.0.1:8080", f"127.0.0.1:{inner}")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {folder / kind};\n" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\nerror_log stderr;\npid {folder / 'nginx.pid'};\nevents {{}}\n"
        f"http {{\naccess_log off;\n{paths}{block}\n}}\n"
    )
    words = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    return ChildProcess(words, log=folder / "nginx.log")


def reached(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def renewed(authority: trustme.CA, folder: Path, port: int, trust: ssl.SSLContext) -> None:
    """A new certificate is served without a restart; a key that does not fit before that changes nothing."""
    before = served(port, trust)
    other = authority.issue_cert("127.0.0.1")
    other.private_key_pem.write_to_path(folder / "server.key")
    log = folder / "https.log"
    eventually(lambda: "is not used" in log.read_text(), 30, "a console that refuses half of a renewal")
    assert served(port, trust) == before
    other.cert_chain_pems[0].write_to_path(folder / "server.pem")
    eventually(lambda: served(port, trust) != before, 30, "the renewed certificate")
    assert ssl.PEM_cert_to_DER_cert(other.cert_chain_pems[0].bytes().decode()) == served(port, trust)


def served(port: int, trust: ssl.SSLContext) -> bytes:
    plain = socket.create_connection(("127.0.0.1", port), timeout=5)
    with plain, trust.wrap_socket(plain, server_hostname="127.0.0.1") as one:
        return one.getpeercert(binary_form=True) or b""


def asked(url: str, trust: ssl.SSLContext) -> httpx.Response | None:
    try:
        return httpx.get(f"{url}{API}/me", verify=trust, timeout=5)
    except httpx.TransportError:
        return None
