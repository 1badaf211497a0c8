"""Requests for a WebSocket: what is accepted, and which web pages may connect."""

import pytest
from pydantic import ValidationError

from holdmq.core.websocket import MAX_HEAD_BYTES
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.sockets.upgrade import Upgrades

SAME_HOST = "same-host"


def request(*, start: str = "GET /mqtt HTTP/1.1", leave: str = "", host: str = "localhost:8083", **more: str) -> bytes:
    """One of a client, without the header `leave`, and with more of them (`sec_websocket_key="..."`)."""
    headers = {
        "host": host,
        "upgrade": "websocket",
        "connection": "keep-alive, Upgrade",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-version": "13",
        "sec-websocket-protocol": "mqttv3.1, mqtt",
    }
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    lines = [start, *(f"{name}: {value}" for name, value in headers.items() if name != leave)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def answered(asked: bytes, *, origins: str = SAME_HOST, tls: bool = False) -> tuple[int, str]:
    """The status, and why it was refused."""
    answer = Upgrades(Settings(ws_origins=origins)).answer(asked, tls=tls)
    status_line, _, _ = answer.data.partition(b"\r\n")
    assert answer.data.count(b"\r\n\r\n") == 1
    return int(status_line.split()[1]), answer.refusal


def test_a_request_is_accepted_with_the_key_and_the_subprotocol_of_the_standards() -> None:
    answer = Upgrades(Settings()).answer(request(), tls=False)
    lines = answer.data.decode().lower().split("\r\n")
    assert lines[0].startswith("http/1.1 101 ")
    assert "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in lines  # RFC 6455, 1.3
    assert "sec-websocket-protocol: mqtt" in lines
    assert not [line for line in lines if line.startswith("sec-websocket-extensions")]


@pytest.mark.parametrize(
    ("asked", "status", "why"),
    [
        (request(start="GET /other HTTP/1.1"), 404, "path '/other'; expected /mqtt"),
        (request(sec_websocket_protocol="chat"), 400, "subprotocol 'chat'; expected mqtt"),
        (request(leave="sec-websocket-protocol"), 400, "subprotocol ''; expected mqtt"),
        (request(leave="sec-websocket-key"), 400, "Sec-WebSocket-Key"),
        (request(leave="upgrade"), 400, "Upgrade"),
        (request(leave="host"), 400, ""),
        (request(sec_websocket_version="8"), 426, "Sec-WebSocket-Version"),
        (request(start="POST /mqtt HTTP/1.1"), 400, "GET"),
        (request(start="GET /mqtt HTTP/1.1\r\nbroken"), 400, "HTTP"),
        (request(host="\xe4\xff"), 400, ""),
        (request(sec_websocket_protocol="\xe4"), 400, ""),
        (request() + b"\x82\x80", 400, "bytes after the request"),
        (b"\x10\x0c\x00\x04MQTT", 400, "HTTP"),
        (b"G", 400, "no HTTP request"),
        (b"GET /" + b"x" * (MAX_HEAD_BYTES - 5), 431, f"above {MAX_HEAD_BYTES} bytes"),
    ],
)
def test_another_request_is_refused_with_a_status_and_a_reason(asked: bytes, status: int, why: str) -> None:
    told, reason = answered(asked)
    assert told == status
    assert reason
    assert why in reason


@pytest.mark.parametrize(
    ("origin", "host", "tls", "allowed"),
    [
        ("http://localhost", "localhost:8083", False, True),
        ("http://localhost:3000", "LOCALHOST:8083", False, True),
        ("http://127.0.0.1:3000", "127.0.0.1:8083", False, True),
        ("http://192.168.1.5", "192.168.1.5:8083", False, True),
        ("http://[::1]:3000", "[::1]:8083", False, True),
        ("https://app.example.com", "app.example.com", True, True),
        ("https://app.example.com:8443", "app.example.com:8084", True, True),
        ("http://app.example.com", "app.example.com:8083", False, False),  # DNS rebinding
        ("http://evil.example", "localhost:8083", False, False),
        ("https://evil.example", "app.example.com", True, False),
        ("http://localhost.evil.example", "localhost", False, False),
        ("http://127.0.0.1", "localhost:8083", False, False),
        ("null", "localhost:8083", False, False),
        ("", "localhost:8083", False, False),
        ("http://[", "[", False, False),
        ("http://localhost@evil.example", "localhost", False, False),
    ],
)
def test_a_web_page_may_connect_to_the_host_that_it_comes_from(
    origin: str, host: str, tls: bool, allowed: bool
) -> None:
    status, reason = answered(request(host=host, origin=origin), tls=tls)
    assert (status == 101) == allowed
    assert status in (101, 403, 400)
    assert allowed or "origin" in reason or status == 400


@pytest.mark.parametrize("origins", [SAME_HOST, "https://app.example.com", ""])
def test_a_client_that_sends_no_origin_is_not_a_web_page_and_may_connect(origins: str) -> None:
    assert answered(request(), origins=origins) == (101, "")


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ("*", "http://anywhere.example", True),
        ("*", "null", True),
        ("https://app.example.com", "https://app.example.com", True),
        ("https://App.example.com,https://b.example", "https://b.example", True),
        ("https://app.example.com", "HTTPS://APP.EXAMPLE.COM", True),
        ("https://app.example.com", "http://app.example.com", False),
        ("https://app.example.com", "https://app.example.com:8443", False),
        ("https://app.example.com", "http://localhost", False),
        ("https://app.example.com, same-host", "http://localhost", True),
        ("null", "null", True),
        ("", "http://localhost", False),
    ],
)
def test_a_list_of_origins_is_what_it_says(origins: str, origin: str, allowed: bool) -> None:
    assert (answered(request(origin=origin), origins=origins)[0] == 101) == allowed


def test_of_two_origins_both_have_to_be_allowed() -> None:
    asked = request(origin="http://localhost\r\nOrigin: http://evil.example")
    assert answered(asked)[0] == 403


def test_what_is_not_an_origin_is_not_a_setting() -> None:
    for wrong in ("app.example.com", "https://app.example.com/path", "https://"):
        with pytest.raises(ValidationError, match=r"expected scheme://host\[:port\], null, same-host or \*"):
            Settings(ws_origins=f"https://good.example,{wrong}")


def test_what_is_not_a_network_is_not_a_setting() -> None:
    for wrong in ("proxy.example.com", "10.0.0.1/8", "10.0.0.0/33"):
        with pytest.raises(ValidationError, match=f"network '{wrong}'; expected an address or a network"):
            Settings(proxy_networks=f"127.0.0.1,{wrong}")
