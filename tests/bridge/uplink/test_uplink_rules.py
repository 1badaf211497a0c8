"""Topic lines, and the path of a message, without a broker."""

import pytest

from holdmq.core import mqtt
from holdmq_bridge.uplink.path import NAME, Path
from holdmq_bridge.uplink.rules import Direction, Rule, Rules


def test_a_line_reads_as_in_mosquitto_conf() -> None:
    assert Rule.parse("sensors/#") == Rule("sensors/#", Direction.OUT, 0, "", "")
    assert Rule.parse('topic a/+ both 2 "" far/') == Rule("a/+", Direction.BOTH, 2, "", "far/")
    assert Rule.parse('"" in 1 here/a there/b') == Rule("", Direction.IN, 1, "here/a", "there/b")
    assert Rule.parse("topic out 1") == Rule("topic", Direction.OUT, 1)  # a pattern of that name


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("", "0 words"),
        ("a out 1 b c d", "6 words"),
        ("a sideways", "'sideways'"),
        ("a out many", "'many'"),
        ("a out 3", "QoS 3"),
        ("a/#/b out", "'a/#/b'"),
        ("# out 1 b+ c", "wildcard"),
        ('"" out 1', "local filter ''"),
        ("$share/g/a out", "shared"),
        ("a out 1 'b", "quotation"),
    ],
)
def test_a_line_that_is_wrong_is_refused_with_the_reason(line: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong.replace("+", r"\+")):
        Rule.parse(line)


def test_a_rule_is_printed_as_the_line_that_it_was() -> None:
    line = 'a/# both 2 "" far/'
    assert str(Rule.parse(line)) == line


def test_the_first_line_that_matches_decides_name_and_qos() -> None:
    rules = Rules([Rule.parse("a/b out 2 x/ y/"), Rule.parse("# out 1 x/ z/")])
    first, second = rules.outward("x/a/b"), rules.outward("x/a/c")
    assert first is not None
    assert (first.topic, first.qos) == ("y/a/b", 2)
    assert second is not None
    assert (second.topic, second.qos) == ("z/a/c", 1)
    assert rules.outward("other") is None
    assert rules.inward("y/a/b") is None
    assert rules.local_filters == {"x/a/b": 2, "x/#": 1}


def test_two_in_lines_for_the_same_topic_are_refused() -> None:
    with pytest.raises(ValueError, match="may match the same topic"):
        Rules([Rule.parse("a/# in 1"), Rule.parse("+/b both 1")])


def test_two_in_lines_that_no_topic_matches_both_are_accepted() -> None:
    Rules([Rule.parse("+ in 1"), Rule.parse("/# in 1"), Rule.parse("a/b in 1")])


def path_of(*brokers: str) -> mqtt.Properties:
    return mqtt.Properties(user_properties=((NAME, " ".join(brokers).encode()),))


def test_a_message_is_marked_with_the_brokers_that_it_passed() -> None:
    path = Path("b", 8)
    assert path.inward(mqtt.NO_PROPERTIES) == path_of("b")
    assert path.inward(path_of("a")) == path_of("a", "b")
    assert path.outward(mqtt.NO_PROPERTIES) == path_of("b")
    assert path.outward(path_of("a", "b")) == path_of("a", "b")  # came in by one link, goes out by another
    assert path.outward(path_of("a")) == path_of("a", "b")  # somebody else's link brought it
    kept = mqtt.Properties(content_type=b"x", user_properties=((b"n", b"v"), (NAME, b"a"), (b"n", b"w")))
    assert path.inward(kept) == mqtt.Properties(
        content_type=b"x", user_properties=((b"n", b"v"), (b"n", b"w"), (NAME, b"a b"))
    )


def test_a_message_that_was_here_or_came_far_enough_is_left_out() -> None:
    path = Path("b", 3)
    assert path.inward(path_of("a", "b", "c")) is None
    assert path.inward(path_of("x", "y", "z")) is None
    assert path.outward(path_of("b", "c")) is None
    assert path.outward(path_of("x", "y", "z")) is None
    assert path.outward(path_of("x", "y", "b")) is not None
    assert path.inward(path_of(*(["x" * 100] * 100))) is None
