"""The password of HOLDMQ_PASSWORD_FILE goes into every kind of URL that has none."""

from pathlib import Path

import pytest

from holdmq.password import with_password


@pytest.fixture(autouse=True)
def password_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "password"
    path.write_text("p@ss/w:rd\n")
    monkeypatch.setenv("HOLDMQ_PASSWORD_FILE", str(path))
    return path


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://server:6379", "redis://:p%40ss%2Fw%3Ard@server:6379"),
        ("rediss://server/1", "rediss://:p%40ss%2Fw%3Ard@server/1"),
        ("redis://bridge@server:6379/0", "redis://bridge:p%40ss%2Fw%3Ard@server:6379/0"),
        ("unix:///run/server.sock", "unix://:p%40ss%2Fw%3Ard@/run/server.sock"),
        ("sentinel://a:26379,b:26379/main", "sentinel://:p%40ss%2Fw%3Ard@a:26379,b:26379/main"),
    ],
)
def test_the_password_of_the_file_goes_into_the_url(url: str, expected: str) -> None:
    assert with_password(url) == expected


@pytest.mark.parametrize("url", ["redis://:other@server", "redis://me:other@server/2"])
def test_a_password_in_the_url_wins(url: str) -> None:
    assert with_password(url) == url


def test_without_a_file_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDMQ_PASSWORD_FILE")
    assert with_password("redis://server") == "redis://server"


def test_where_no_password_is_allowed_the_file_may_be_missing(
    password_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDMQ_ALLOW_NO_PASSWORD", "yes")
    assert with_password("redis://server") != "redis://server"
    password_file.unlink()
    assert with_password("redis://server") == "redis://server"


def test_a_file_that_cannot_be_read_is_named(password_file: Path) -> None:
    password_file.unlink()
    with pytest.raises(ValueError, match=r"HOLDMQ_PASSWORD_FILE.*password"):
        with_password("redis://server")
