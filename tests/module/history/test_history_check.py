"""HISTORY.CHECK: posting lists and marks are what follows from the logs, or it is told which are not."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.core.history import history_models as models
from tests.module.history_support import append, check_all, store
from tests.module.sessions_support import error_of, unchanged

LOG = "{s/0}_history_1_0"
TEXT = "holdmq-patterns 1 levels=8\n#\nd/+/state\n"


def fill(client: redis.Redis, count: int, shards: int = 1) -> None:
    """A store of two generations and several epochs."""
    store(client, "s", "d/#", shards=shards, epoch=3600)
    with client.pipeline(transaction=False) as pipe:
        for number in range(count):
            pipe.execute_command("HISTORY.APPEND", "s", f"d/{number % 50}/{('state', 'x/y')[number % 2]}", number)
        pipe.execute()
    client.execute_command("HISTORY.PATTERNS", "PREPARE", "s", 2, TEXT)
    client.execute_command("HISTORY.PATTERNS", "COMMIT", "s", 2)
    with client.pipeline(transaction=False) as pipe:
        for number in range(count):
            pipe.execute_command("HISTORY.APPEND", "s", f"d/{number % 50}/{('state', 'x/y')[number % 2]}", number)
        pipe.execute()


def check_in_parts(client: redis.Redis, epoch: int, count: int, most: int = 5000) -> list[str]:
    """HISTORY.CHECK of an epoch with COUNT, to its end."""
    said: list[bytes] = []
    cursor, told = client.execute_command("HISTORY.CHECK", "s", 0, "EPOCH", epoch, "COUNT", count)
    while cursor != b"0" and most > 0:
        said += told
        most -= 1
        cursor, told = client.execute_command("HISTORY.CHECK", "s", 0, "CURSOR", cursor, "COUNT", count)
    assert cursor == b"0", "no end"
    return [sentence.decode() for sentence in said + told]


def test_a_check_in_parts_compares_what_the_epoch_had_when_it_began(client: redis.Redis) -> None:
    fill(client, 1500)
    assert check_in_parts(client, 1, count=50) == []
    cursor, told = client.execute_command("HISTORY.CHECK", "s", 0, "COUNT", 400)
    with unchanged(client):
        while cursor != b"0" and told == []:
            cursor, told = client.execute_command("HISTORY.CHECK", "s", 0, "CURSOR", cursor)
    cursor, told = client.execute_command("HISTORY.CHECK", "s", 0, "COUNT", 400)
    for number in range(3000):
        append(client, "s", f"d/{number % 70}/state", "m")
        if number % 60 == 0 and cursor != b"0" and told == []:
            cursor, told = client.execute_command("HISTORY.CHECK", "s", 0, "CURSOR", cursor, "COUNT", 150)
    while cursor != b"0" and told == []:
        cursor, told = client.execute_command("HISTORY.CHECK", "s", 0, "CURSOR", cursor)
    assert (cursor, told) == (b"0", [])


def test_what_the_module_writes_is_right(client: redis.Redis) -> None:
    fill(client, 3000, shards=2)
    with unchanged(client):
        assert check_all(client) == []


def list_of(client: redis.Redis, epoch: int) -> str:
    """The longest posting list of an epoch."""
    names: list[Any] = client.keys(f"{{s/0}}_history_{epoch}_*_*_*_*")
    return str(max(names, key=client.strlen).decode())


def cut(client: redis.Redis) -> str:
    name = list_of(client, 1)
    client.set(name, (client.get(name) or b"")[:-2])
    return f"'{name}' "


def flip(client: redis.Redis) -> str:
    name = list_of(client, 1)
    client.setrange(name, 40, b"\x7f\x7f")
    return f"'{name}' "


def lose(client: redis.Redis) -> str:
    name = list_of(client, 1)
    client.delete(name)
    return f"'{name}' has 0 bytes"


def invent(client: redis.Redis) -> str:
    name = "{s/0}_history_1_0_7_0_0"
    assert not client.exists(name)
    client.set(name, b"\x01\x02")
    return f"'{name}' is not a posting list from 0 on"


def stray(client: redis.Redis) -> str:
    name = "{s/0}_history_1_0_0_0_0"
    client.append(name, core_entry(600))  # behind 512, the last that the page has
    return f"'{name}' has 1112, which does not belong there"


def core_entry(number: int) -> bytes:
    """The first entry of a block, as a list of no other number would have it."""
    return bytes(models.postings([(number, 0)], 20))


def mark(client: redis.Redis) -> str:
    stands: Any = client.getrange("{s/0}_history_1_marks", 16, 16)
    client.setrange("{s/0}_history_1_marks", 16, bytes([stands[0] ^ 0xFF]))
    return "mark 1 is not that of message 257"


def more_marks(client: redis.Redis) -> str:
    client.append("{s/0}_history_1_marks", b"x" * 16)
    return "bytes of marks; expected 12 marks"


def miss(client: redis.Redis) -> str:
    entries: list[Any] = client.xrange(LOG, count=5) or []
    client.xdel(LOG, entries[3][0])
    return "the logs have 2999 messages; expected 3000"


def foreign(client: redis.Redis) -> str:
    client.xadd(LOG, {"m": "no record"}, id="9000-1")
    return "entry 9000 of the log of pattern 0 is not a message of this pattern"


@pytest.mark.parametrize("harm", [cut, flip, lose, invent, stray, mark, more_marks, miss, foreign])
def test_what_others_changed_is_reported(client: redis.Redis, harm: Callable[[redis.Redis], str]) -> None:
    fill(client, 3000)
    assert check_all(client) == []
    says = harm(client)
    told = check_all(client)
    assert any(sentence.startswith("epoch 1: ") and says in sentence for sentence in told), told
    assert len(told) <= 101
    assert any(says in sentence for sentence in check_in_parts(client, 1, count=1000))
    assert client.execute_command("HISTORY.CHECK", "s", 0) == [], "the current epoch is as it was"


def test_wrong_arguments_are_named_and_a_store_without_messages_is_right(client: redis.Redis) -> None:
    store(client, "s", "d/#")
    assert client.execute_command("HISTORY.CHECK", "s", 0) == []
    append(client, "s", "d/1", "m")
    assert "the shard is '1'" in (error_of(client, "HISTORY.CHECK", "s", 1) or "")
    for cursor in ("0", "", "1-2", "1-1-1-0-0-0-0-0-x", "1-1-1-0-0-0-0-0-0-0"):
        assert "the unchanged cursor of a HISTORY.CHECK reply" in (
            error_of(client, "HISTORY.CHECK", "s", 0, "CURSOR", cursor) or ""
        )
    assert "COUNT is '0'" in (error_of(client, "HISTORY.CHECK", "s", 0, "COUNT", 0) or "")
    assert "EPOCH is '2'" in (error_of(client, "HISTORY.CHECK", "s", 0, "EPOCH", 2) or "")
    client.delete("{s/0}_history_1_patterns")
    assert "the pattern set is missing" in (error_of(client, "HISTORY.CHECK", "s", 0) or "")
    client.set("{s/0}_history_1_patterns", "holdmq-patterns 1 levels=8\n#\n")
    assert client.execute_command("HISTORY.CHECK", "s", 0) == []
