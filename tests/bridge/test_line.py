"""The order of a client's commands across refusals and losses of the server."""

from hiredis import ReplyError

from holdmq_bridge.line import DROPPED, Line
from holdmq_bridge.request import Kind, Request

OOM = ReplyError("OOM command not allowed when used memory > 'maxmemory'.")
BAD = ReplyError("INVALIDTOPIC the topic name contains a wildcard (+ or #)")


def publish(number: int, qos: int = 1) -> Request:
    return Request(None, Kind.PUBLISH, ("TOPIC.PUBLISH", str(number)), number, qos)


def numbers(requests: list[Request]) -> list[int]:
    return [request.packet_id for request in requests]


def line_of(*requests: Request, up: bool = True) -> tuple[Line, list[Request]]:
    outbox: list[Request] = []
    line = Line(outbox)
    if up:
        line.restored()
    for request in requests:
        line.add(request)
    return line, outbox


def completed(line: Line) -> list[int]:
    return numbers(list(line.completed()))


def test_requests_go_out_at_once_and_complete_in_their_order() -> None:
    one, two, three = publish(1), publish(2), publish(3)
    line, outbox = line_of(one, two, three)
    assert numbers(outbox) == [1, 2, 3]
    line.answered(two, 0)
    assert completed(line) == []
    line.answered(one, 0)
    assert completed(line) == [1, 2]
    line.answered(three, 0)
    assert completed(line) == [3]
    assert len(line) == 0


def test_nothing_overtakes_a_refused_publish() -> None:
    one, two, three = publish(1), publish(2), publish(3)
    line, outbox = line_of(one, two, three)
    outbox.clear()
    line.answered(one, OOM)
    line.add(publish(4))
    assert outbox == []
    assert not line.retry()  # two and three are still under way
    line.answered(two, 0)
    line.answered(three, OOM)
    assert completed(line) == []
    assert line.retry()
    assert numbers(outbox) == [1, 2, 3, 4]
    for request in list(outbox):
        line.answered(request, 0)
    assert completed(line) == [1, 2, 3, 4]


def test_a_refusal_for_good_completes_and_does_not_stall() -> None:
    one, two = publish(1), publish(2)
    line, _ = line_of(one, two)
    line.answered(one, BAD)
    assert not line.stalled
    assert [request.reply for request in line.completed()] == [BAD]


def test_a_refused_qos_0_publish_is_dropped_and_not_sent_again() -> None:
    zero, one = publish(1, qos=0), publish(2)
    line, outbox = line_of(zero, one)
    outbox.clear()
    line.answered(zero, OOM)
    line.answered(one, OOM)
    assert [request.reply for request in line.completed()] == [DROPPED]
    assert line.retry()
    assert numbers(outbox) == [2]


def test_an_answered_qos_2_publish_behind_a_refusal_is_not_sent_again() -> None:
    one, two, three = publish(1), publish(2, qos=2), publish(3)
    line, outbox = line_of(one, two, three)
    outbox.clear()
    line.answered(one, OOM)
    line.answered(two, 0)
    line.answered(three, 0)
    line.retry()
    assert numbers(outbox) == [1, 3]


def test_an_answered_subscription_behind_a_refusal_is_not_sent_again() -> None:
    one, subscription = publish(1), Request(None, Kind.SUBSCRIBE, ("SESSION.SUBSCRIBE",), 2)
    line, outbox = line_of(one, subscription)
    outbox.clear()
    line.answered(one, OOM)
    line.answered(subscription, [1])
    line.retry()
    assert numbers(outbox) == [1]
    line.answered(one, 0)
    assert completed(line) == [1, 2]


def test_after_a_loss_everything_without_a_reply_is_sent_again_in_order() -> None:
    one, zero, three, four = publish(1), publish(2, qos=0), publish(3), publish(4)
    line, outbox = line_of(one, zero, three)
    assert line.lost() == []
    outbox.clear()
    line.add(four)
    assert outbox == []
    line.restored()
    assert numbers(outbox) == [1, 3, 4]  # the QoS 0 publish is in doubt: at most once
    for request in list(outbox):
        line.answered(request, 0)
    assert completed(line) == [1, 2, 3, 4]


def test_a_qos_0_publish_that_was_never_written_survives_a_loss() -> None:
    line, outbox = line_of(publish(1, qos=0), up=False)
    line.lost()
    line.restored()
    assert numbers(outbox) == [1]


def test_a_loss_reports_qos_2_publishes_in_doubt() -> None:
    one, two = publish(1), publish(2, qos=2)
    line, _ = line_of(one, two)
    assert numbers(line.lost()) == [2]


def test_a_loss_during_a_stall_sends_again_from_the_refused_one() -> None:
    one, two = publish(1), publish(2)
    line, outbox = line_of(one, two)
    line.answered(one, OOM)
    line.answered(two, 0)
    line.lost()
    outbox.clear()
    line.restored()
    assert not line.stalled
    assert numbers(outbox) == [1, 2]
