"""Settings that the console refuses before it listens: each error names the value and what is accepted."""

import re
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import ValidationError

from holdmq.cli import main
from holdmq_console.settings import ConsoleSettings
from tests.support import Server, embedded_kinds

server_kinds = embedded_kinds


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A certificate, its key, the key of another one, the key with a passphrase, and a file that is none of it."""
    authority = trustme.CA()
    certificate, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    private = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    contents = {
        "certificate": certificate.cert_chain_pems[0].bytes(),
        "key": certificate.private_key_pem.bytes(),
        "another": other.private_key_pem.bytes(),
        "locked": private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")),
        "garbage": b"garbage",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return {name: str(tmp_path / name) for name in contents}


@pytest.mark.parametrize(
    ("certificate", "key"),
    [("certificate", "another"), ("certificate", "locked"), ("garbage", "key"), ("certificate", None)],
)
def test_certificates_that_do_not_fit_are_named(
    server: Server, files: dict[str, str], certificate: str, key: str | None
) -> None:
    words = ["--tls-certificate", files[certificate], *(["--tls-key", files[key]] if key else [])]
    done = CliRunner().invoke(main, ["--url", server.url, "console", "--port", "0", *words])
    assert done.exit_code == 1
    assert f"Error: {files[certificate]}" in done.output
    assert "expected PEM files" in done.output


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("tls_key", "key.pem"),
        ("session_hours", "inf"),
        ("login_ban_max_s", "inf"),
        ("request_timeout_s", "inf"),
        ("audit_entries", "99999999999999999999"),
        ("sample_interval_s", "0.0001"),
        ("allowed_hosts", "https://console.example.org"),
        ("allowed_hosts", "console.example.org:443"),
        ("allowed_hosts", "*"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(setting: str, value: str) -> None:
    given: dict[str, Any] = {setting: value}
    with pytest.raises(ValidationError, match=setting) as refused:
        ConsoleSettings(**given)
    assert re.search("expected|should be", str(refused.value))


@pytest.mark.parametrize("value", ["console.example.org, localhost", "192.0.2.7,2001:db8::1", "HOST_1"])
def test_names_and_addresses_are_hosts(value: str) -> None:
    assert not ConsoleSettings(allowed_hosts=value).is_local
