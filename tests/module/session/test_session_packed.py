"""SESSION.FETCH … PACKED: the same page as without it, its entries in one string."""

import struct
from typing import Any

import pytest
import redis

from tests.module.sessions_support import Session, error_of, publish, unchanged

HEADER = struct.Struct("<QHBI")  # src/topic/packed_page.h


def unpacked(page: bytes) -> list[list[Any]]:
    """The entries, as an array has them."""
    entries, at = [], 0
    while at < len(page):
        serial, packet_id, state, size = HEADER.unpack_from(page, at)
        at += HEADER.size
        assert at + size <= len(page)
        entries.append([serial, packet_id, state, page[at : at + size]])
        at += size
    return entries


def fetch(client: redis.Redis, *options: str | int) -> list[Any]:
    """Both forms, which are the same."""
    entries, more, expired = client.execute_command("SESSION.FETCH", "{c}", *options, "PACKED")
    assert isinstance(entries, bytes)
    page = [unpacked(entries), more, expired]
    if "WINDOW" not in options:
        assert page == client.execute_command("SESSION.FETCH", "{c}", *options)
    return page


def fill(client: redis.Redis) -> Session:
    """Messages of every kind and state."""
    session = Session(client)
    epoch = session.open(expiry=1000).epoch
    session.subscribe(("t", 2))
    publish(client, "t", "once", qos=2)
    publish(client, "t", "again", qos=1, ttl=1000)
    session.add("", "x" * 3, '{"packetType":"PUBLISH","payload":"AA=="}', "y" * 70_000, "\0\r\n$5", "last")
    session.sent(4, epoch)
    session.release(1, 5, epoch=epoch)
    return session


def test_a_packed_page_has_the_entries_of_the_other(client: redis.Redis) -> None:
    fill(client)
    page = fetch(client)
    assert [entry[:3] for entry in page[0]] == [
        *([serial, serial, 2 if serial in (1, 5) else 1] for serial in range(1, 6)),
        *([serial, serial, 0] for serial in range(6, 9)),
    ]
    assert page[1:] == [0, 0]
    assert fetch(client, "AFTER", 2, "COUNT", 3)[1] == 1
    assert len(fetch(client, "BYTES", 1)[0]) == 1
    assert [entry[0] for entry in fetch(client, "INFLIGHT")[0]] == [1, 2, 3, 4]
    assert fetch(client, "AFTER", 100) == [[], 0, 0]
    assert unpacked(client.execute_command("SESSION.FETCH", "{c}", "PACKED", "COUNT", 1)[0]) == [page[0][0]]


def test_a_packed_page_hands_out_a_window(client: redis.Redis) -> None:
    session = fill(client)
    assert [entry[:3] for entry in fetch(client, "WINDOW", 6)[0]] == [[5, 5, 2], [6, 6, 0]]
    assert fetch(client, "WINDOW", 6) == [[], 1, 0]
    session.ack(1, 2)
    assert [entry[:3] for entry in fetch(client, "WINDOW", 6)[0]] == [[7, 7, 0], [8, 8, 0]]


def test_a_packed_page_drops_what_expired(client: redis.Redis) -> None:
    session = fill(client)
    session.expire_message(3)
    session.expire_message(8)
    entries, more, expired = client.execute_command("SESSION.FETCH", "{c}", "PACKED")
    assert [entry[0] for entry in unpacked(entries)] == [1, 2, 4, 5, 6, 7]
    assert (more, expired) == (0, 2)


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_queue_that_is_empty_is_an_empty_string(client: redis.Redis, protocol: int) -> None:
    client.execute_command("HELLO", protocol)
    assert client.execute_command("SESSION.FETCH", "{none}", "PACKED") == [b"", 0, 0]


def test_a_page_as_large_as_it_gets_comes_whole(client: redis.Redis) -> None:
    session = Session(client)
    session.add(*["z" * 1000] * 5000)
    assert len(fetch(client, "COUNT", 10_000, "BYTES", 2**30)[0]) == 5000
    assert len(fetch(client, "COUNT", 10)[0]) == 10


def test_a_word_after_packed_is_read(client: redis.Redis) -> None:
    session = fill(client)
    with unchanged(client):
        assert "COUNT" in (error_of(client, "SESSION.FETCH", session.key, "PACKED", "COUNT", 0) or "")
        assert "'PACK'" in (error_of(client, "SESSION.FETCH", session.key, "PACKED", "PACK") or "")


@pytest.mark.parametrize("packed", [(), ("PACKED",)])
def test_a_bounded_page_has_no_more_bytes_than_asked_for(client: redis.Redis, packed: tuple[str, ...]) -> None:
    Session(client).add("x" * 10, "y" * 10, "z" * 50, "w" * 10)

    def page(*options: str | int) -> tuple[list[int], int, list[int]]:
        entries, more, _, too_large = client.execute_command("SESSION.FETCH", "{c}", *options, *packed, "BOUNDED")
        return [entry[0] for entry in (unpacked(entries) if packed else entries)], more, too_large

    assert page("BYTES", 80) == ([1, 2, 3, 4], 0, [])
    assert page("BYTES", 79) == ([1, 2, 3], 1, [])
    assert page("BYTES", 21) == ([1, 2], 1, [])
    assert page("BYTES", 9) == ([], 1, [10, 1, 1])
    assert page("AFTER", 2, "BYTES", 49) == ([], 1, [50, 3, 3])
    assert page("AFTER", 2, "COUNT", 1, "BYTES", 50) == ([3], 1, [])
    assert page("AFTER", 4, "BYTES", 1) == ([], 0, [])
    client.delete("{c}_messages_3")
    assert page("AFTER", 2, "BYTES", 9) == ([], 1, [10, 4, 4])


def test_a_bounded_page_within_the_window_hands_out_only_what_it_has(client: redis.Redis) -> None:
    session = Session(client)
    session.add("x" * 10, "y" * 50)
    assert client.execute_command("SESSION.FETCH", "{c}", "WINDOW", 5, "BYTES", 20, "BOUNDED")[3] == []
    assert session.fetch().states == [1, 0]
    assert client.execute_command("SESSION.FETCH", "{c}", "WINDOW", 5, "BYTES", 20, "BOUNDED")[3] == [50, 2, 2]
    assert session.fetch().states == [1, 0]
