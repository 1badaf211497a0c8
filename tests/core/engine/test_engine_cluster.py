"""Publishes that cross the nodes of a cluster, with scripted replies: answers, refusals, losses, order, bounds."""

from typing import Any

import pytest

from holdmq.core import slot_of
from holdmq.core.engine import NO_LINK, EngineSettings, EventKind, OutOfStepError, Store
from tests.bridge import packets
from tests.core.engine.engine_talk import Desk, array, bulk, page, publish, publishes
from tests.core.support import Books

A, B, C = (letter * 40 for letter in (b"a", b"b", b"c"))  # the nodes of links 0, 1, 2
N = 7  # the generation of A
THIRD = 5461


def desk_of(**settings: Any) -> Desk:
    """Three links, each with a third of the slots."""
    books = settings.pop("books", None)
    pipeline = settings.pop("max_pipeline", 0)
    desk = Desk(EngineSettings(links=3, cluster=1, **settings), max_pipeline=pipeline, books=books)
    for link, node in enumerate((A, B, C)):
        desk.engine.node(link, node)
        desk.engine.slots(link * THIRD, 16383 if link == 2 else link * THIRD + THIRD - 1, link)
    return desk


def ranges(*slots: int) -> bytes:
    return b"*%d\r\n" % (2 * len(slots)) + b"".join(b":%d\r\n:%d\r\n" % (slot, slot) for slot in slots)


def changed(version: int, *slots: int) -> bytes:
    return b"*2\r\n:%d\r\n" % version + ranges(*slots)


def checks(*answers: bytes, node: bytes = A, n: int = N) -> bytes:
    """The reply to ROUTE.MCHECK."""
    return b"*3\r\n" + bulk(node) + b":%d\r\n" % n + array(list(answers))


OK = b"+OK\r\n"


def taken(reached: int, *left: tuple[int, int, bytes]) -> bytes:
    """The reply to a visit."""
    parts = [b"*3\r\n:%d\r\n:%d\r\n" % (first, last) + bulk(reason) for first, last, reason in left]
    return b"*2\r\n:%d\r\n" % reached + array(parts)


def asked(commands: list[list[bytes]]) -> list[tuple[bytes, bytes]]:
    """Topic and version of each check."""
    found: list[tuple[bytes, bytes]] = []
    for command in commands:
        if command[0] == b"ROUTE.MCHECK":
            found += [(command[i + 1], command[i + 3]) for i in range(3, len(command), 4)]
    return found


def visits(commands: list[list[bytes]]) -> list[tuple[bytes, list[int]]]:
    """Payload and slots of each visit."""
    found: list[tuple[bytes, list[int]]] = []
    for command in commands:
        for one in publishes(command):
            at = len(one) - 1 - one[::-1].index(b"SLOTS")
            numbers = [int(word) for word in one[at + 2 : at + 2 + 2 * int(one[at + 1])]]
            slots = [
                slot for first, last in zip(numbers[::2], numbers[1::2], strict=True) for slot in range(first, last + 1)
            ]
            found.append((one[2], slots))
    return found


def words_of(commands: list[list[bytes]], name: bytes) -> list[list[bytes]]:
    return [command[1:] for command in commands if command[0] == name]


def opened(desk: Desk, topic: bytes = b"t", slots: tuple[int, ...] = (5, 6000), **session: Any) -> int:
    """A publisher on link 0 whose topic is cached with these slots, version 1."""
    conn = desk.open(session.pop("client_id", b"c"), link=0, **session)
    properties = b"" if session.get("version") == 5 else None
    desk.send(conn, publish(topic, b"first", qos=1, packet_id=1, properties=properties))
    assert asked(desk.commands(0)) == [(topic, b"-1")]
    desk.answer(checks(changed(1, *slots)))
    for link in range(3):
        count = len(visits(desk.commands(link)))
        desk.answer(*[taken(1)] * count, link=link)
    assert desk.received(conn)[:1] == b"\x40"
    return conn


# ---- the regular way


def test_a_cluster_without_an_answer_is_asked_first() -> None:
    desk = desk_of()
    conn = desk.open(link=0)
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
    assert [desk.commands(1), desk.commands(2)] == [[], []]
    command = desk.commands(0)[0]
    assert command == [b"ROUTE.MCHECK", A, b"1", b"{c}", b"t", b"7", b"-1"]
    desk.answer(checks(changed(3, 5, 6000)))
    sent = desk.commands(1)
    assert sent[0] == [
        *(b"TOPIC.PUBLISH", b"t", b"1", b"QOS", b"1", b"FROM", b"c", b"EPOCH", b"7"),
        *(b"SLOTS", b"1", b"6000", b"6000", b"HOME", A, b"7"),
    ]
    assert visits(desk.commands(0)) == [(b"1", [5])]
    desk.answer(taken(1), link=1)
    assert desk.received(conn) == b""
    desk.answer(taken(1), link=0)
    assert desk.received(conn) == packets.puback(1)
    assert desk.engine.outstanding == 0


def test_a_known_answer_is_checked_while_the_publish_is_on_its_way() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2))
    at_home = desk.commands(0)
    assert asked(at_home) == [(b"t", b"1")]
    assert (visits(at_home), visits(desk.commands(1)), desk.commands(2)) == ([(b"2", [5])], [(b"2", [6000])], [])
    desk.answer(taken(1), checks(OK), link=0)
    assert desk.received(conn) == b""
    desk.answer(taken(1), link=1)
    assert desk.received(conn) == packets.puback(2)


def test_the_checks_of_a_turn_are_one_command() -> None:
    desk = desk_of(max_pipeline=64)
    first, second = opened(desk), opened(desk, b"u", client_id=b"d")
    desk.send(first, publish(b"t", b"2", qos=1, packet_id=2) + publish(b"t", b"3", qos=1, packet_id=3))
    desk.send(second, publish(b"u", b"4", qos=1, packet_id=4))
    at_home, elsewhere = desk.commands(0), desk.commands(1)
    assert [command[0] for command in at_home] == [b"TOPIC.PIPELINE", b"ROUTE.MCHECK"]
    assert asked(at_home) == [(b"t", b"1"), (b"u", b"1")]  # one for both of the first client
    assert visits(elsewhere) == [(b"2", [6000]), (b"3", [6000]), (b"4", [6000])]
    desk.answer(array([taken(1)] * 3), link=1)
    desk.answer(array([taken(1)] * 3), checks(OK, OK), link=0)
    assert desk.received(first) == packets.puback(2) + packets.puback(3)
    assert desk.received(second) == packets.puback(4)


def test_nobody_listens() -> None:
    desk = desk_of()
    conn = opened(desk, slots=(), version=5)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2, properties=b""))
    desk.commands(0)
    desk.answer(checks(OK))
    assert desk.received(conn) == bytes([0x40, 3, 0, 2, 0x10])


def test_many_new_topics_each_wait_for_their_answer_only() -> None:
    desk = desk_of()
    conn = desk.open(link=0)
    for at in range(1, 4):
        desk.send(conn, publish(b"t%d" % at, b"x", qos=1, packet_id=at))
    for at in range(1, 4):
        assert asked(desk.commands(0)) == [(b"t%d" % at, b"-1")]
        desk.answer(checks(changed(1)))
    assert desk.received(conn) == b"".join(packets.puback(at) for at in range(1, 4))


def test_a_changed_set_is_visited_where_it_was_not_and_used_from_then_on() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2) + publish(b"t", b"3", qos=1, packet_id=3))
    assert len(asked(desk.commands(0))) == 1
    assert len(visits(desk.commands(1))) == 2
    desk.answer(taken(1), taken(1), link=1)
    desk.answer(taken(1), taken(1), checks(changed(2, 5, 6000, 12000)), link=0)
    assert desk.received(conn) == b""
    assert visits(desk.commands(2)) == [(b"2", [12000])]  # 3 follows when 2 is whole
    desk.answer(taken(1), link=2)
    assert desk.received(conn) == packets.puback(2)
    assert visits(desk.commands(2)) == [(b"3", [12000])]
    assert [desk.commands(0), desk.commands(1)] == [[], []]
    desk.answer(taken(1), link=2)
    assert desk.received(conn) == packets.puback(3)
    desk.send(conn, publish(b"t", b"4", qos=1, packet_id=4))
    assert asked(desk.commands(0)) == [(b"t", b"2")]
    assert [visits(desk.commands(link)) for link in (1, 2)] == [[(b"4", [6000])], [(b"4", [12000])]]


def test_a_set_that_another_client_learnt_is_used_after_the_earlier_publishes() -> None:
    desk = desk_of()
    conn = opened(desk)
    other = desk.open(b"d", link=0)
    desk.send(conn, publish(b"t", b"5", qos=1, packet_id=5))
    desk.send(other, publish(b"t", b"x", qos=1, packet_id=1))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), taken(1), checks(b"-TRYAGAIN the slot is moving\r\n", changed(2, 5, 6000, 12000)))
    desk.answer(taken(1), taken(1), link=1)
    desk.send(conn, publish(b"t", b"6", qos=1, packet_id=6))
    assert [payload for payload, _ in visits(desk.commands(2))] == [b"x"]
    desk.now_ms += desk.settings.retry_first_ms
    assert asked(desk.commands(0)) == [(b"t", b"1")]
    desk.answer(checks(changed(2, 5, 6000, 12000)))
    assert visits(desk.commands(2)) == [(b"5", [12000])]
    desk.answer(taken(1), taken(1), link=2)
    assert visits(desk.commands(2)) == [(b"6", [12000])]


def test_qos_0_goes_with_its_check() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2"))
    assert asked(desk.commands(0)) == [(b"t", b"1")]
    assert visits(desk.commands(1)) == [(b"2", [6000])]
    desk.answer(taken(1), checks(changed(2, 5, 6000, 12000)), link=0)
    desk.answer(taken(1), link=1)
    assert visits(desk.commands(2)) == [(b"2", [12000])]
    desk.answer(taken(1), link=2)
    assert desk.engine.outstanding == 0


def test_a_denied_publish_keeps_its_place() -> None:
    desk = desk_of()
    conn = opened(desk, version=5)
    desk.engine.rules(conn, [(False, b"no")], denied_otherwise=False)
    for packet_id, topic in ((2, b"t"), (3, b"no")):
        desk.send(conn, publish(topic, b"x", qos=1, packet_id=packet_id, properties=b""))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), checks(OK), link=0)
    assert desk.received(conn) == b""
    desk.answer(taken(1), link=1)
    assert desk.received(conn) == packets.puback(2) + bytes([0x40, 3, 0, 3, 0x87])


def test_qos_2_has_its_four_packets() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=2, packet_id=2))
    assert all(b"PACKET" not in one for one in desk.commands(0) if one[0] == b"TOPIC.PUBLISH")
    desk.commands(1)
    desk.answer(taken(1), checks(OK), link=0)
    desk.answer(taken(1), link=1)
    assert desk.received(conn) == packets.pubrec(2)
    desk.send(conn, packets.pubrel(2))
    assert [command[0] for command in desk.commands(0)] == [b"SESSION.COMPLETE"]
    desk.answer(b":0\r\n")
    assert desk.received(conn) == packets.pubcomp(2)


# ---- retained messages and history


@pytest.mark.parametrize("is_known", [False, True])
def test_a_retained_message_is_written_before_its_check(is_known: bool) -> None:
    kept = slot_of("{t}_retained")
    home = kept // THIRD
    desk = desk_of()
    conn = opened(desk, slots=(5, 6000)) if is_known else desk.open(link=0)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2, retain=True))
    if not is_known:
        assert asked(desk.commands(0)) == [(b"t", b"-1")]
        desk.answer(checks(changed(1, 5, 6000)))
    sent = {link: desk.commands(link) for link in range(3)}
    assert visits(sent[home]) == [(b"2", [kept])]
    assert sum(map(len, sent.values())) == 1
    desk.answer(taken(0), link=home)
    sent = {link: desk.commands(link) for link in range(3)}
    assert asked(sent[0]) == [(b"t", b"1")]
    assert (visits(sent[0]), visits(sent[1])) == ([(b"2", [5])], [(b"2", [6000])])
    desk.answer(taken(1), checks(OK), link=0)
    desk.answer(taken(1), link=1)
    assert desk.received(conn) == packets.puback(2)


def test_a_retained_message_whose_slot_moves_is_written_first_all_the_same() -> None:
    kept = slot_of("{t}_retained")
    home = kept // THIRD
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2, retain=True) + publish(b"t", b"3", qos=1, packet_id=3))
    assert visits(desk.commands(home)) == [(b"2", [kept])]
    desk.answer(taken(0, (kept, kept, b"TRYAGAIN")), link=home)
    desk.now_ms += desk.settings.retry_first_ms
    sent = {link: desk.commands(link) for link in range(3)}
    assert [command[0] for command in sent[home]] == [b"ROUTE.RESUME", b"TOPIC.PUBLISH"]
    assert [len(commands) for link, commands in sent.items() if link != home] == [0, 0]
    desk.answer(OK, taken(0), link=home)
    assert asked(desk.commands(0)) == [(b"t", b"1")]


def test_a_topic_of_a_store_also_visits_its_shard() -> None:
    desk = desk_of()
    desk.engine.stores([Store((b"plant/#", b"t"), 0, (12345,))])
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2))
    assert visits(desk.commands(2)) == [(b"2", [12345])]
    other = desk.open(b"d", link=0)
    desk.send(other, publish(b"u", b"3", qos=1, packet_id=2))
    desk.commands(0)
    with pytest.raises(MemoryError, match="1 to 64"):
        desk.engine.stores([Store((b"t",), 0, ())])


# ---- refusals


def test_a_moved_slot_is_reported_and_visited_on_its_new_link_in_order() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2) + publish(b"t", b"3", qos=1, packet_id=3))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), taken(1), checks(OK), link=0)
    moved, refused = (6000, 6000, b"MOVED 10.0.0.3:6379"), (6000, 6000, b"REFUSED")
    desk.answer(taken(0, moved), link=1)
    desk.look()
    told = [event for event in desk.events if event.kind == EventKind.SLOT_MOVED]
    assert [(event.link, event.token, event.data) for event in told] == [(1, 6000, b"MOVED 10.0.0.3:6379")]
    assert EventKind.REFUSED not in [event.kind for event in desk.events]
    desk.engine.slots(6000, 6000, 2)
    assert desk.commands(2) == []  # the reply to 3 is missing
    desk.answer(taken(0, refused), link=1)
    assert visits(desk.commands(2)) == [(b"2", [6000])]
    desk.answer(taken(1), link=2)
    assert desk.received(conn) == packets.puback(2)
    assert visits(desk.commands(2)) == [(b"3", [6000])]
    desk.answer(taken(1), link=2)
    assert desk.received(conn) == packets.puback(3)
    desk.send(conn, publish(b"t", b"4", qos=1, packet_id=4))
    assert visits(desk.commands(2)) == [(b"4", [6000])]


def test_a_refused_slot_resumes_after_all_replies_and_a_pause() -> None:
    desk = desk_of()
    conn, other = opened(desk), opened(desk, b"u", client_id=b"d")
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), checks(OK), link=0)
    desk.send(other, publish(b"u", b"x", qos=1, packet_id=2))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(0, (6000, 6000, b"TRYAGAIN")), link=1)
    desk.now_ms += desk.settings.retry_first_ms
    assert desk.commands(1) == []  # the other client's publish to the slot has no reply yet
    desk.answer(taken(0, (6000, 6000, b"REFUSED")), link=1)
    sent = desk.commands(1)
    assert [command[0] for command in sent] == [b"ROUTE.RESUME", b"TOPIC.PUBLISH"]
    assert sent[0][1:] == [b"6000"]
    desk.answer(OK, taken(1), link=1)
    assert desk.received(conn) == packets.puback(2)
    desk.answer(taken(1), checks(OK), link=0)
    desk.now_ms += desk.settings.retry_first_ms
    assert visits(desk.commands(1)) == [(b"x", [6000])]
    desk.answer(taken(1), link=1)
    assert desk.received(other) == packets.puback(2)


def test_a_publisher_of_a_former_epoch_was_taken_over() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2))
    desk.commands(1)
    desk.answer(taken(0, (6000, 6000, b"FENCED")), link=1)
    assert EventKind.TAKEN_OVER in desk.kinds()


def test_a_node_that_is_not_fed_is_reported_once_a_second_and_asked_again_when_it_is_fed() -> None:
    desk = desk_of(retry_first_ms=5000, retry_most_ms=5000)
    first, second = desk.open(link=0), desk.open(b"d", link=0)
    no_routes = b"-NOROUTES this node knows the routes of 0 of 16384 slots\r\n"
    for conn in (first, second):
        desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
        desk.commands(0)
        desk.answer(no_routes)
    desk.look()
    told = [event for event in desk.events if event.kind == EventKind.ROUTES_MISSING]
    assert [(event.code, event.link, event.data, event.token) for event in told] == [(0, 0, A, 0)]
    assert desk.commands(0) == []
    desk.engine.routes_fed(1)
    assert desk.commands(0) == []
    desk.engine.routes_fed(0)
    assert asked(desk.commands(0)) == [(b"t", b"-1")] * 2
    desk.answer(checks(changed(1), changed(1)))
    assert desk.received(first) == desk.received(second) == packets.puback(1)


def test_a_target_without_the_home_is_reported_and_visited_after_its_export() -> None:
    desk = desk_of(retry_first_ms=5000, retry_most_ms=5000)
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2) + publish(b"t", b"3", qos=1, packet_id=3))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), taken(1), checks(OK), link=0)
    desk.answer(*[b"-NOHOME this node has not exported its routes\r\n"] * 2, link=1)
    desk.look()
    told = [event for event in desk.events if event.kind == EventKind.ROUTES_MISSING]
    assert [(event.code, event.link, event.data, event.token) for event in told] == [(1, 1, A, N)]
    desk.engine.routes_fed(1)
    sent = desk.commands(1)
    assert [command[0] for command in sent] == [b"ROUTE.RESUME", b"TOPIC.PUBLISH"]
    assert asked(desk.commands(0)) == [(b"t", b"1")]
    desk.answer(OK, taken(1), link=1)
    desk.answer(checks(OK), link=0)
    assert desk.received(conn) == packets.puback(2)
    assert visits(desk.commands(1)) == [(b"3", [6000])]


def test_a_home_that_was_replaced_and_that_a_target_does_not_know_is_over() -> None:
    """Nobody can feed it any more: the publish must not wait for that."""
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2))
    desk.commands(0), desk.commands(1)
    desk.engine.server_lost(0)
    desk.engine.node(0, C)  # a replica has taken over
    desk.engine.server_restored(desk.now_ms, 0)
    desk.answer(b"-NOHOME this node has not exported its routes\r\n", link=1)
    desk.look()
    assert [event for event in desk.events if event.kind == EventKind.ROUTES_MISSING] == []
    assert asked(desk.commands(0)) == [(b"t", b"-1")]
    desk.answer(page([]), checks(changed(1, 5, 6000), node=C))
    assert (visits(desk.commands(0)), visits(desk.commands(1))) == ([(b"2", [5])], [(b"2", [6000])])
    desk.answer(taken(1), link=0)
    desk.answer(OK, taken(1), link=1)
    assert desk.received(conn) == packets.puback(2)


def test_a_home_that_is_over_is_asked_again_and_its_new_answer_used() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), checks(OK), link=0)
    desk.answer(b"-STALEHOME a later generation is known\r\n", link=1)
    desk.now_ms += desk.settings.retry_first_ms
    assert asked(desk.commands(0)) == [(b"t", b"-1")]
    assert desk.commands(1) == []
    desk.answer(checks(changed(1, 5, 6000, 12000), n=N + 1))
    sent = desk.commands(1)
    assert [command[0] for command in sent] == [b"ROUTE.RESUME", b"TOPIC.PUBLISH"]
    assert sent[1][-2:] == [A, b"8"]
    assert visits(desk.commands(2)) == [(b"2", [12000])]
    desk.answer(OK, taken(1), link=1)
    desk.answer(taken(1), link=2)
    assert desk.received(conn) == packets.puback(2)
    assert desk.commands(0) == []


def test_a_full_queue_holds_the_publisher_back() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2) + publish(b"t", b"3", qos=1, packet_id=3))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), taken(1), checks(OK), link=0)
    desk.answer(b"-QUEUEFULL a queue is full\r\n", taken(1), link=1)
    desk.now_ms += desk.settings.retry_first_ms
    for payload in (b"2", b"3"):  # 3 again, too: otherwise 2 would be the last one
        [again] = desk.commands(1)
        assert visits([again]) == [(payload, [6000])]
        assert again[9] == b"RETRY"  # all replies are here: the node need not hold it back any longer
        desk.answer(taken(1), link=1)
    assert desk.received(conn) == packets.puback(2) + packets.puback(3)
    desk.send(conn, publish(b"t", b"4", qos=1, packet_id=4))
    assert not any(b"RETRY" in command for command in desk.commands(0) + desk.commands(1))


def test_a_publish_that_is_refused_again_is_visited_again_in_its_slots() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"RETRY", qos=1, packet_id=2))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), checks(OK), link=0)
    for _ in range(3):
        desk.answer(b"-QUEUEFULL a queue is full\r\n", link=1)
        desk.now_ms += desk.settings.retry_most_ms
        assert visits(desk.commands(1)) == [(b"RETRY", [6000])]
    desk.answer(taken(1), link=1)
    assert desk.received(conn) == packets.puback(2)


@pytest.mark.parametrize(("error", "reason"), [(b"-OOM no memory\r\n", 0x97), (b"-ERR no\r\n", 0x80)])
def test_a_refusal_for_good_is_answered_in_its_place(error: bytes, reason: int) -> None:
    desk = desk_of()
    conn = opened(desk, version=5)
    both = [publish(b"t", b"%d" % at, qos=1, packet_id=at, properties=b"") for at in (2, 3)]
    desk.send(conn, b"".join(both))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), error, link=1)
    assert desk.received(conn) == b""
    desk.answer(taken(1), taken(1), checks(OK), link=0)
    assert desk.received(conn) == packets.puback(2) + bytes([0x40, 3, 0, 3, reason])
    assert desk.engine.outstanding == 0


def test_a_publish_is_checked_again_after_an_earlier_one_that_is() -> None:
    """Otherwise a session that has subscribed meanwhile gets 2 and 4, and not 3."""
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2))
    assert asked(desk.commands(0)) == [(b"t", b"1")]
    desk.send(conn, publish(b"t", b"3", qos=1, packet_id=3))
    assert asked(desk.commands(0)) == [(b"t", b"1")]
    desk.answer(taken(1), checks(b"-TRYAGAIN the slot is moving\r\n"), taken(1), checks(OK))
    desk.commands(1)
    desk.answer(taken(1), taken(1), link=1)
    desk.now_ms += desk.settings.retry_first_ms
    assert asked(desk.commands(0)) == [(b"t", b"1")]
    desk.answer(checks(changed(2, 5, 6000, 12000)))
    for payload, packet_id in ((b"2", 2), (b"3", 3)):
        assert visits(desk.commands(2)) == [(payload, [12000])]
        desk.answer(taken(1), link=2)
        assert desk.received(conn) == packets.puback(packet_id)
        if payload == b"2":
            assert asked(desk.commands(0)) == [(b"t", b"1")]
            desk.answer(checks(changed(2, 5, 6000, 12000)))
    assert desk.engine.outstanding == 0


def test_refusals_end_after_their_time() -> None:
    desk = desk_of(retry_total_ms=100)
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), checks(OK), link=0)
    desk.answer(taken(0, (6000, 6000, b"TRYAGAIN")), link=1)
    desk.now_ms += 200
    assert [command[0] for command in desk.commands(1)] == [b"ROUTE.RESUME", b"TOPIC.PUBLISH"]
    desk.answer(OK, taken(0, (6000, 6000, b"TRYAGAIN")), link=1)
    assert EventKind.FAILED in desk.kinds()


def test_a_refused_qos_0_is_dropped_and_its_slot_resumes_for_the_next() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2"))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), checks(OK), link=0)
    desk.answer(taken(0, (6000, 6000, b"TRYAGAIN")), link=1)
    assert desk.engine.outstanding == 0
    assert desk.engine.counters()["publishes_dropped_qos0"] == 1
    desk.send(conn, publish(b"t", b"3"))
    sent = desk.commands(1)
    assert [command[0] for command in sent] == [b"ROUTE.RESUME", b"TOPIC.PUBLISH"]


# ---- losses and moves


def test_a_lost_link_gets_its_publishes_again_in_order() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, b"".join(publish(b"t", b"%d" % at, qos=1, packet_id=at) for at in (2, 3)))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), link=1)
    desk.answer(taken(1), taken(1), checks(OK), link=0)
    assert desk.received(conn) == packets.puback(2)
    desk.send(conn, publish(b"t", b"4", qos=1, packet_id=4))
    desk.commands(0), desk.commands(1)
    desk.engine.server_lost(1)
    desk.answer(taken(1), checks(OK), link=0)
    assert [desk.commands(link) for link in range(3)] == [[], [], []]
    desk.engine.server_restored(desk.now_ms, 1)
    assert visits(desk.commands(1)) == [(b"3", [6000])]
    desk.answer(taken(1), link=1)
    assert visits(desk.commands(1)) == [(b"4", [6000])]
    desk.answer(taken(1), link=1)
    assert desk.received(conn) == packets.puback(3) + packets.puback(4)


def test_the_slots_of_a_lost_link_may_get_another_one() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), checks(OK), link=0)
    desk.engine.server_lost(1)
    desk.engine.slots(THIRD, 2 * THIRD - 1, 2)
    assert visits(desk.commands(2)) == [(b"2", [6000])]
    desk.answer(taken(1), link=2)
    assert desk.received(conn) == packets.puback(2)


def test_a_written_qos_0_is_lost_with_its_link_and_an_unwritten_one_is_not() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2"))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), checks(OK), link=0)
    desk.send(conn, publish(b"t", b"3"))
    desk.engine.server_lost(1)
    desk.engine.server_restored(desk.now_ms, 1)
    desk.commands(0)
    desk.answer(taken(1), checks(OK), link=0)
    assert visits(desk.commands(1)) == [(b"3", [6000])]
    desk.answer(taken(1), link=1)
    assert desk.engine.outstanding == 0


def test_the_loss_of_the_publishers_link_asks_again() -> None:
    desk = desk_of()
    conn = opened(desk, slots=(6000,))
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), link=1)
    desk.engine.server_lost(0)
    assert desk.received(conn) == b""
    desk.engine.server_restored(desk.now_ms, 0)
    sent = desk.commands(0)
    assert asked(sent) == [(b"t", b"1")]
    assert desk.commands(1) == []
    desk.answer(*[checks(OK) if command[0] == b"ROUTE.MCHECK" else page([]) for command in sent])
    assert desk.received(conn) == packets.puback(2)


def test_a_publisher_that_moves_is_checked_by_its_new_node() -> None:
    desk = desk_of()
    conn = opened(desk, slots=(6000,))
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2) + publish(b"t", b"3", qos=1, packet_id=3))
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), taken(1), link=1)
    desk.engine.move(conn, 2)
    assert desk.commands(2) == []
    desk.answer(checks(b"-MOVED 7 10.0.0.3:6379\r\n"))
    sent = desk.commands(2)
    assert asked(sent) == [(b"t", b"-1")]
    answer = checks(changed(9, 6000, 12000), node=C, n=70)
    desk.answer(*[answer if command[0] == b"ROUTE.MCHECK" else page([]) for command in sent], link=2)
    assert visits(desk.commands(2)) == [(b"2", [12000])]
    desk.answer(taken(1), link=2)
    assert desk.received(conn) == packets.puback(2)
    assert asked(desk.commands(2)) == [(b"t", b"-1")]


def test_a_publish_that_breaks_each_connection_is_given_up() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2))
    desk.commands(0)
    desk.answer(taken(1), checks(OK), link=0)
    for _ in range(5):
        assert visits(desk.commands(1)) == [(b"2", [6000])]
        desk.engine.server_lost(1)
        desk.engine.server_restored(desk.now_ms, 1)
    kinds = desk.kinds()
    assert EventKind.ABANDONED in kinds
    assert EventKind.FAILED in kinds


def test_slots_of_nobody_wait_for_a_link() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.engine.slots(6000, 6000, NO_LINK)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2))
    desk.commands(0)
    desk.answer(taken(1), checks(OK), link=0)
    assert desk.commands(1) == desk.commands(2) == []
    desk.engine.slots(6000, 6000, 2)
    assert visits(desk.commands(2)) == [(b"2", [6000])]


def test_an_older_module_gets_the_visits_one_by_one() -> None:
    desk = desk_of(max_pipeline=64)
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2) + publish(b"t", b"3"))
    desk.commands(0)
    assert desk.commands(1)[0][0] == b"TOPIC.PIPELINE"
    desk.answer(array([taken(1)] * 2), checks(OK), link=0)
    desk.answer(b"-ERR unknown command 'TOPIC.PIPELINE'\r\n", link=1)
    assert [command[0] for command in desk.commands(1)] == [b"TOPIC.PUBLISH"]
    desk.answer(taken(1), link=1)
    assert desk.received(conn) == packets.puback(2)
    assert visits(desk.commands(1)) == [(b"3", [6000])]


# ---- bounds


def test_answers_are_bounded_by_their_bytes() -> None:
    desk = desk_of(max_answer_bytes=4096)
    conn = desk.open(link=0)
    for at in range(100):
        desk.send(conn, publish(b"topic/%d" % at, b"x"))
        desk.commands(0)
        desk.answer(checks(changed(1)))
        assert desk.engine.answer_bytes(0) <= 4096
    assert desk.engine.answer_bytes(0) > 2000
    desk.engine.node(0, b"d" * 40)
    assert desk.engine.answer_bytes(0) == 0


def test_without_room_for_answers_each_publish_asks_first() -> None:
    desk = desk_of(max_answer_bytes=0)
    conn = desk.open(link=0)
    for at in (1, 2):
        desk.send(conn, publish(b"t", b"x", qos=1, packet_id=at))
        assert asked(desk.commands(0)) == [(b"t", b"-1")]
        desk.answer(checks(changed(1, 6000)))
        assert visits(desk.commands(1)) == [(b"x", [6000])]
        desk.answer(taken(1), link=1)
        assert desk.received(conn) == packets.puback(at)


def test_a_command_names_at_most_1024_slots() -> None:
    desk = desk_of()
    conn = desk.open(link=0)
    desk.send(conn, publish(b"t", b"x", qos=1, packet_id=1))
    desk.commands(0)
    desk.answer(checks(b"*2\r\n:1\r\n*2\r\n:0\r\n:16383\r\n"))
    sent = [visits(desk.commands(link)) for link in range(3)]
    assert [[len(slots) for _payload, slots in one] for one in sent] == [[1024] * 5 + [341]] * 2 + [[1024] * 5 + [342]]
    assert sorted(slot for one in sent for _payload, slots in one for slot in slots) == list(range(16384))
    for link in range(3):
        desk.answer(*[taken(0)] * 6, link=link)
    assert desk.received(conn) == packets.puback(1)


def test_publishes_that_wait_count_into_the_bounds() -> None:
    desk = desk_of(max_client_outstanding=3, max_outstanding=6)
    conn = desk.open(link=0)
    desk.send(conn, b"".join(publish(b"t", b"x", qos=1, packet_id=at) for at in range(1, 9)))
    assert desk.engine.should_pause(conn)
    assert desk.engine.congested
    desk.engine.close(conn)
    assert desk.engine.outstanding == 0


def test_a_closed_client_leaves_no_trouble() -> None:
    desk = desk_of()
    conn = opened(desk)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2))
    desk.commands(0), desk.commands(1)
    desk.engine.close(conn)
    desk.answer(taken(1), checks(OK), link=0)
    desk.answer(taken(0, (6000, 6000, b"TRYAGAIN")), link=1)
    assert desk.engine.outstanding == 0


@pytest.mark.parametrize(("first", "last", "link"), [(1, 0, 0), (0, 16384, 0), (0, 5, 3)])
def test_slots_need_a_range_and_a_link(first: int, last: int, link: int) -> None:
    with pytest.raises(ValueError, match="no slots"):
        desk_of().engine.slots(first, last, link)


@pytest.mark.parametrize(("link", "node"), [(3, A), (0, b""), (0, b"a" * 41)])
def test_a_node_needs_a_link_and_an_id(link: int, node: bytes) -> None:
    with pytest.raises(ValueError, match="no link"):
        desk_of().engine.node(link, node)


def disturbed_while_memory_is_short(call: int) -> bool:
    """A publish whose set changes and one of whose slots moves, while this call for memory fails: whether it failed."""
    books = Books()
    desk = desk_of(books=books)
    conn = opened(desk)
    before = books.calls
    books.fail_at(before + call)
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2))
    for _ in range(20):
        for link in range(3):
            for command in desk.commands(link):
                reply = OK
                if command[0] == b"SESSION.FETCH":
                    reply = page([])
                elif command[0] == b"ROUTE.MCHECK":
                    reply = checks(changed(2, 5, 6000, 12000))
                elif command[0] == b"TOPIC.PUBLISH":
                    moves = visits([command])[0][1] == [6000] and link == 1
                    reply = taken(0, (6000, 6000, b"MOVED x:1")) if moves else taken(1)
                try:
                    desk.answer(reply, link=link)
                except OutOfStepError:  # there was no memory for the reply
                    desk.engine.server_lost(link)
                    desk.engine.server_restored(desk.now_ms, link)
                    break
        try_slots(desk)
        desk.now_ms += 1000
    has_failed = books.calls >= before + call
    kinds = desk.kinds()
    assert (desk.received(conn) == packets.puback(2)) != bool({EventKind.FAILED, EventKind.ERROR} & set(kinds))
    return has_failed


def try_slots(desk: Desk) -> None:
    """As an owner does: again, if there was no memory."""
    for _ in range(2):
        try:
            desk.engine.slots(6000, 6000, 2)
        except ValueError:
            continue
        return


def test_without_memory_a_publish_is_completed_or_its_client_is_disconnected() -> None:
    outcomes = [disturbed_while_memory_is_short(call) for call in range(1, 60)]
    assert outcomes[0]
    assert not outcomes[-1]
