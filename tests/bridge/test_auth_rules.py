"""Rules: their text, the names that stand in for %c and %u, and who may do what."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdmq.core import InvalidTopicError, check_topic_filter, check_topic_name, matches
from holdmq_bridge.auth.rules import Action, CompiledRules, Rule, RuleError, RuleList, compile_rules


def compiled(
    *lines: str, client_id: bytes = b"c1", username: str | None = "alice", default: bool = False
) -> CompiledRules:
    rules = RuleList("test", tuple(map(Rule.parse, lines)))
    return compile_rules([rules], client_id, username, default=default, version=3)


# ---- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["allow publish a/b", "deny subscribe #", "allow all dev-%c/+/of %u", "deny all 100%%/x", "allow publish  x"],
)
def test_a_rule_is_read_and_written_alike(text: str) -> None:
    assert str(Rule.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("allow publish", "expected allow|deny publish|subscribe|all <filter>"),
        ("permit publish a", "'permit'"),
        ("allow read a", "'read'"),
        ("allow Publish a", "'Publish'"),
        ("allow publish a/#/b", "#"),
        ("allow publish a+", "+"),
        ("allow publish ", "empty"),
        ("allow publish a\nb", "control character"),
        ("allow publish a\x85b", "control character"),
        ("allow publish a/%x", "%x"),
        ("allow publish a/%", "%"),
        ("allow publish %c+", "+"),
        ("allow publish $share/g/a", "inner filter"),
        ("allow publish $share/%c/a", "inner filter"),
        ("allow publish $%c/a", "$"),
        ("allow publish $S%u/a", "$"),
        ("allow publish \ud800", "UTF-8"),
    ],
)
def test_what_is_not_a_rule_is_named(text: str, named: str) -> None:
    with pytest.raises(RuleError) as raised:
        Rule.parse(text)
    assert named in str(raised.value)


# ---- order and verdict -----------------------------------------------------------------------------------------------


def test_the_first_rule_that_matches_decides() -> None:
    rules = compiled("deny publish a/secret", "allow publish a/+", "deny publish a/b")
    assert not rules.may_publish(b"a/secret")
    assert rules.may_publish(b"a/b")
    assert not rules.may_publish(b"b")


@pytest.mark.parametrize("default", [True, False])
def test_the_default_decides_where_no_rule_matches(default: bool) -> None:
    rules = compiled("allow publish a", default=default)
    assert rules.may_publish(b"b") is default
    assert rules.may_subscribe(b"a") is default


def test_a_rule_holds_for_its_action_alone() -> None:
    rules = compiled("allow publish p", "allow subscribe s", "allow all b")
    assert [rules.may_publish(topic) for topic in (b"p", b"s", b"b")] == [True, False, True]
    assert [rules.may_subscribe(topic) for topic in (b"p", b"s", b"b")] == [False, True, True]


def test_the_entries_for_publishing_are_in_order_and_without_the_others() -> None:
    rules = compiled("deny publish a", "allow subscribe b", "allow all %c/#")
    assert rules.publish_entries() == ([(False, b"a"), (True, b"c1/#")], False)
    assert rules.version == 3


@given(
    st.lists(st.sampled_from(["a/+", "a/#", "#", "+/b", "$s/#", "a//b"]), max_size=4, unique=True),
    st.sampled_from([b"a", b"a/b", b"a//b", b"/", b"x/b", b"$s/b", b"$s"]),
)
def test_a_publish_is_matched_as_the_core_does(made: list[str], topic: bytes) -> None:
    rules = compiled(*(f"allow publish {one}" for one in made))
    assert rules.may_publish(topic) == any(matches(one, topic) for one in made)


def test_a_decision_names_the_rule() -> None:
    rules = compiled("deny publish a", "allow publish %u/#")
    entry = rules.decide_publish(b"alice/x").entry
    assert entry is not None
    assert (entry.source, entry.number, str(entry.rule), entry.topic_filter) == (
        "test", 2, "allow publish %u/#", b"alice/#",
    )  # fmt: skip
    assert rules.decide_publish(b"b").entry is None


def test_what_is_not_a_topic_is_an_error_and_not_a_verdict() -> None:
    rules = compiled("allow all #", default=True)
    with pytest.raises(InvalidTopicError):
        rules.may_publish(b"a/+")
    with pytest.raises(InvalidTopicError):
        rules.may_subscribe(b"a/#/b")


# ---- subscribing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        (b"a/b", True), (b"a/+", True), (b"a/#", True), (b"a", True), (b"a/b/+/#", True),
        (b"#", False), (b"+/b", False), (b"+", False), (b"b", False), (b"+/#", False),
    ],
)  # fmt: skip
def test_a_subscription_wider_than_the_rule_is_refused(wanted: bytes, allowed: bool) -> None:
    assert compiled("allow subscribe a/#").may_subscribe(wanted) is allowed


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [(b"open/#", True), (b"secret/x", False), (b"secret/#", False), (b"#", False), (b"+/x", False), (b"+", False)],
)
def test_a_subscription_that_reaches_into_what_is_denied_is_refused(wanted: bytes, allowed: bool) -> None:
    assert compiled("deny subscribe secret/#", "allow subscribe #").may_subscribe(wanted) is allowed


def test_a_denial_after_the_rule_that_allows_does_not_count() -> None:
    rules = compiled("allow subscribe a/b", "deny subscribe a/+", "allow subscribe #")
    assert rules.may_subscribe(b"a/b")
    assert not rules.may_subscribe(b"a/+")
    assert not rules.may_subscribe(b"a/c")


def test_a_shared_subscription_is_checked_by_its_inner_filter() -> None:
    rules = compiled("deny subscribe a/secret", "allow subscribe a/+")
    assert rules.may_subscribe(b"$share/g/a/b")
    assert not rules.may_subscribe(b"$share/g/a/secret")
    assert not rules.may_subscribe(b"$share/g/#")
    assert not rules.may_subscribe(b"$share/a/b")


def test_a_wildcard_does_not_reach_the_topics_of_the_server() -> None:
    rules = compiled("allow all #")
    assert not rules.may_publish(b"$SYS/x")
    assert not rules.may_subscribe(b"$SYS/#")
    assert compiled("allow subscribe $SYS/#").may_subscribe(b"$SYS/broker/+")


words = st.sampled_from(["a", "b", "+", "$s"])
filters = st.tuples(st.lists(words, min_size=1, max_size=3), st.booleans()).map(
    lambda made: "/".join([*made[0], *(["#"] if made[1] else [])])
)
lines = st.lists(st.tuples(st.booleans(), filters), max_size=5)
topics = st.lists(st.sampled_from(["a", "b", "z", "$s"]), min_size=1, max_size=4).map(
    lambda made: "/".join(made).encode()
)


@given(lines, filters, topics, st.booleans())
@settings(max_examples=300)
def test_a_client_that_may_subscribe_may_have_every_topic_of_it(
    made: list[tuple[bool, str]], wanted: str, topic: bytes, default: bool
) -> None:
    rules = compiled(*(f"{'allow' if allow else 'deny'} all {one}" for allow, one in made), default=default)
    if rules.may_subscribe(wanted.encode()) and matches(wanted, topic):
        assert rules.may_publish(topic)


@given(lines, topics)
def test_subscribing_to_one_topic_is_decided_as_publishing_to_it(made: list[tuple[bool, str]], topic: bytes) -> None:
    rules = compiled(*(f"{'allow' if allow else 'deny'} all {one}" for allow, one in made))
    assert rules.may_subscribe(topic) == rules.may_publish(topic)


# ---- names that stand in rules ---------------------------------------------------------------------------------------


def test_marks_stand_for_the_names_also_within_a_level() -> None:
    rules = compiled("allow all dev-%c/of/%u/100%%/%%c/#", client_id=b"7", username="bob")
    assert rules.may_publish(b"dev-7/of/bob/100%/%c/x")
    assert not rules.may_publish(b"dev-8/of/bob/100%/%c/x")


NASTY = [b"a/b", b"+", b"#", b"a+", b"x/#", b"/", b"", b"c/+/d", b"a\x00b", b"\xff"]


@pytest.mark.parametrize("client_id", NASTY)
def test_a_name_that_is_not_a_level_gets_nothing_from_a_rule_that_allows(client_id: bytes) -> None:
    rules = compiled("allow all dev/%c/#", "allow all %c", "allow all x-%c/y", client_id=client_id)
    assert rules.entries == ()
    assert not rules.may_subscribe(b"dev/+/#")
    assert not rules.may_subscribe(b"dev/a/b")


@pytest.mark.parametrize("client_id", NASTY)
def test_a_name_that_is_not_a_level_is_denied_all_that_is_below(client_id: bytes) -> None:
    rules = compiled("deny all dev/%c/secret", "allow all #", client_id=client_id)
    for topic in (b"dev/a/b/secret", b"dev/a", b"dev", b"dev/other/x"):
        assert not rules.may_publish(topic)
    assert rules.may_publish(b"other")


def test_a_missing_username_gets_nothing_and_is_denied_all_that_is_below() -> None:
    rules = compiled("allow all u/%u/#", "deny all s/%u", "allow all s/#", username=None)
    assert rules.publish_entries() == ([(False, b"s/#"), (True, b"s/#")], False)


@pytest.mark.parametrize("name", [b"$SYS", b"$share", b"$"])
def test_a_name_cannot_open_the_topics_of_the_server(name: bytes) -> None:
    rules = compiled("allow all %c/#", "allow all x/%c/#", client_id=name)
    assert not rules.may_publish(name + b"/x")
    assert not rules.may_subscribe(name + b"/x/#")
    assert rules.may_publish(b"x/" + name + b"/y")


def test_a_denial_also_holds_for_names_of_the_servers_topics() -> None:
    for name in (b"$SYS", b"$SYS/broker", b"$SYS/+"):
        rules = compiled("deny all %c/#", "allow all $SYS/#", "allow all #", client_id=name)
        assert not rules.may_publish(b"$SYS/broker")
        assert not rules.may_subscribe(b"$SYS/broker/#")


def test_a_name_that_makes_the_filter_too_long_gets_nothing_and_is_denied_all() -> None:
    long = b"x" * 65_530
    rules = compiled("deny publish deep/%c/#", "allow publish other/%c/#", "allow publish #", client_id=long)
    assert rules.publish_entries() == ([(False, b"deep/#"), (True, b"#")], False)


names = (
    st.binary(max_size=8)
    | st.text("ab/+#$%cu\x00", max_size=8).map(str.encode)
    | st.sampled_from([b"$share", b"$share/g", b"$SYS"])
)


@given(names, st.sampled_from(["%c/#", "d/%c/#", "d/x%c", "%c", "d/%c/+/e", "a%c/%u"]), topics | names)
@settings(max_examples=300)
def test_a_name_never_gives_what_no_plain_name_would(name: bytes, template: str, topic: bytes) -> None:
    """What a client may publish to, it may because one level of the topic is (or holds) its very name."""
    rules = compiled(f"allow publish {template}", client_id=name, username="u")
    try:
        check_topic_name(topic)
    except InvalidTopicError:
        return
    if rules.may_publish(topic):
        widest = template.replace("%c", "+").replace("x+", "+").replace("a+", "+").replace("%u", "u")
        assert matches(widest, topic)
        assert any(level.endswith(name) for level in topic.split(b"/"))
        assert name
        assert not topic.startswith(b"$")


@given(names, st.sampled_from(["%c/#", "d/%c/#", "d/x%c", "%c", "%c/+/e"]))
@settings(max_examples=200)
def test_every_filter_that_names_make_is_valid(name: bytes, template: str) -> None:
    rules = compiled(f"allow all {template}", f"deny all {template}", client_id=name)
    assert any(not entry.allow for entry in rules.entries)
    for entry in rules.entries:
        check_topic_filter(entry.topic_filter)
        assert entry.action is Action.ALL


@given(names, st.sampled_from(["%c/#", "d/%c/#", "d/x%c", "%c", "%c/e"]), topics | names)
@settings(max_examples=300)
def test_a_denial_is_never_smaller_than_the_text_says(name: bytes, template: str, topic: bytes) -> None:
    rules = compiled(f"deny publish {template}", client_id=name, default=True)
    literal = template.encode().replace(b"%c", name)
    try:
        check_topic_name(topic)
        check_topic_filter(literal)
        denied = matches(literal, topic)
    except InvalidTopicError:
        return
    if denied:
        assert not rules.may_publish(topic)
