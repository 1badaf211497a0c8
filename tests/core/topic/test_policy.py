"""Channel policies: what a list means, which rule a channel gets, and what is said about mistakes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.core import Deliver, Hold, InvalidPolicyError, Policy, Rule
from holdmq.core._binding import ffi, lib
from tests.core import models
from tests.core.support import Books, copy, heap

DEFAULT = Rule(b"*", Hold.UNHEARD, last=False, maxlen=10000, ttl_s=604800, deliver=Deliver.LAST)

globs = st.text('ab*?; "\\\n=', min_size=0, max_size=6).map(str.encode)
rules = st.builds(
    Rule,
    glob=globs,
    hold=st.sampled_from(Hold),
    last=st.booleans(),
    maxlen=st.integers(1, 4294967295),
    ttl_s=st.integers(0, 3155760000),
    deliver=st.sampled_from(Deliver),
).filter(lambda rule: rule.hold is not Hold.NONE or rule.last or rule.deliver is Deliver.NONE)


def render(rule: Rule) -> bytes:
    glob = rule.glob.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    options = (
        f"hold={rule.hold.name.lower()} last={'on' if rule.last else 'off'} maxlen={rule.maxlen} "
        f"ttl={rule.ttl_s} deliver={rule.deliver.name.lower()}"
    )
    return b'"' + glob + b'" ' + options.encode()


# ---- what a list means ----


@given(st.lists(rules, max_size=5), st.sampled_from([b";", b"\n", b" ; ", b";;\r\n"]))
def test_every_rule_comes_back_as_it_was_written(written: list[Rule], separator: bytes) -> None:
    assert Policy(separator.join(map(render, written))).rules == tuple(written)


@given(st.lists(rules, max_size=5), st.text("ab;", max_size=4).map(str.encode))
def test_the_first_rule_that_matches_is_the_channels(written: list[Rule], channel: bytes) -> None:
    expected = next((rule for rule in written if models.glob_regex(rule.glob).fullmatch(channel)), None)
    assert Policy(b";".join(map(render, written))).find(channel) == expected


def test_what_a_rule_leaves_out_has_the_documented_default() -> None:
    assert Policy("*").rules == (DEFAULT,)
    nothing = Policy("* hold=none").rules[0]
    assert (nothing.hold, nothing.deliver) == (Hold.NONE, Deliver.NONE)
    assert Policy("* hold=none last=on").rules[0].deliver is Deliver.LAST


@pytest.mark.parametrize("text", ["", " ", ";", "\n\n", " ;\t;\r\n"])
def test_an_empty_list_is_a_policy_without_rules(text: str) -> None:
    policy = Policy(text)
    assert policy.rules == ()
    assert policy.find("a") is None


def test_a_quoted_glob_may_hold_anything() -> None:
    assert Policy('"a b;\\"c\\\\" ttl=0').rules[0].glob == b'a b;"c\\'
    assert Policy('"\\a"').rules[0].glob == b"\\a"  # only \" and \\ are special
    assert Policy('""').find("") is not None


def test_unquoted_globs_keep_their_backslashes() -> None:
    assert Policy("a\\*b").rules[0].glob == b"a\\*b"


# ---- mistakes ----


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b", "rule 1: 'b' is no option; expected hold=, last=, maxlen=, ttl= or deliver="),
        ("a; b keep=all", "rule 2: 'keep=all' is no option"),
        ("a; b =", "rule 2: '=' is no option"),
        ("a hold=some", "rule 1: 'hold=some' is invalid; expected hold=none, hold=unheard or hold=all"),
        ("a hold=", "rule 1: 'hold=' is invalid; expected hold=none"),
        ("a last=yes", "rule 1: 'last=yes' is invalid; expected last=on or last=off"),
        ("a maxlen=0", "rule 1: 'maxlen=0' is invalid; expected maxlen=<messages>, 1 to 4294967295"),
        ("a maxlen=4294967296", "is invalid; expected maxlen=<messages>"),
        ("a maxlen=99999999999999999999", "is invalid; expected maxlen=<messages>"),
        ("a maxlen=", "is invalid; expected maxlen=<messages>"),
        ("a maxlen=-1", "is invalid; expected maxlen=<messages>"),
        ("a maxlen=1k", "is invalid; expected maxlen=<messages>"),
        ("a ttl=3155760001", "rule 1: 'ttl=3155760001' is invalid; expected ttl=<seconds>, 0 (never) to 3155760000"),
        ("a deliver=all", "rule 1: 'deliver=all' is invalid; expected deliver=none, deliver=last or deliver=held"),
        ("a ttl=1 ttl=1", "rule 1: 'ttl=1' repeats an option; expected each option once per rule"),
        (
            "a hold=none deliver=last",
            "rule 1: 'a' keeps nothing (hold=none last=off) but delivers; expected deliver=none",
        ),
        ('"a', "rule 1: '\"a' has no closing quote; expected"),
        ('"a\\', "has no closing quote; expected"),
        ('"a"b', "rule 1: '\"a\"b' continues after its closing quote; expected a blank or ';' there"),
        ('a"b', "rule 1: 'a\"b' contains a quote; expected the whole glob in quotes"),
        ("a " + "x" * 60, "rule 1: '" + "x" * 40 + "...' is no option"),
        ("a \x01é", "rule 1: '???' is no option"),
    ],
)
def test_a_mistake_is_named_with_its_rule_and_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(InvalidPolicyError) as caught:
        Policy(text)
    assert message in str(caught.value)


def test_there_are_at_most_256_rules() -> None:
    assert len(Policy(";".join(["a"] * 256)).rules) == 256
    with pytest.raises(InvalidPolicyError, match="rule 257: 'a' is one rule too many; expected at most 256"):
        Policy(";".join(["a"] * 257))


@pytest.mark.parametrize("capacity", [0, 1, 10, 200])
def test_an_error_is_cut_to_its_room(capacity: int) -> None:
    room = heap(b"\xff" * capacity)
    text = heap(b"a b")
    allocator = ffi.new("hmq_allocator *", lib.hmq_libc_allocator)
    assert lib.hmq_policy_parse(allocator, text, 3, room, capacity) == ffi.NULL
    said = copy(room, capacity)
    assert capacity == 0 or b"rule 1: 'b' is no option".startswith(said.split(b"\0")[0][:24])
    assert capacity == 0 or b"\0" in said


@given(st.binary(max_size=60), st.lists(st.sampled_from([b"a", b" ", b";", b'"', b"ttl=5", b"\\", b"="]), max_size=20))
def test_no_text_reads_outside_itself(rubbish: bytes, words: list[bytes]) -> None:
    allocator = ffi.new("hmq_allocator *", lib.hmq_libc_allocator)
    for text in (rubbish, b"".join(words)):
        error = heap(bytes(100))
        policy = lib.hmq_policy_parse(allocator, heap(text), len(text), error, 100)
        if policy == ffi.NULL:
            assert ffi.string(error, 100).startswith(b"rule ")
        else:
            assert lib.hmq_policy_rule(policy, lib.hmq_policy_count(policy)) == ffi.NULL
            lib.hmq_policy_free(policy)


# ---- memory ----


def test_a_policy_is_one_block_and_gives_it_back() -> None:
    books = Books()
    policy = Policy("a;b hold=all;c", allocator=books.allocator)
    assert (books.calls, len(books.sizes)) == (1, 1)
    del policy
    assert books.sizes == {}
    with pytest.raises(InvalidPolicyError):
        Policy("a;b;c d", allocator=books.allocator)
    assert books.sizes == {}


def test_without_memory_there_is_no_policy_and_an_error_says_so() -> None:
    with pytest.raises(MemoryError, match="out of memory for a policy of 1 bytes"):
        Policy("*", allocator=Books(lambda _call: True).allocator)
    lib.hmq_policy_free(ffi.NULL)
