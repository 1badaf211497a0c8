"""Pattern sets: every topic has exactly one pattern, equal sets are equal bytes, mistakes are named."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.core import MAX_PATTERNS, MISSING_LEVEL, InvalidPatternsError, InvalidTopicError, PatternSet
from holdmq.core._binding import ffi, lib
from tests.core.history import history_models as models
from tests.core.support import LIBC, Books, copy, heap

HEAD = b"holdmq-patterns 1 levels=%d\n"


def set_of(*lines: str, levels: int = 4) -> PatternSet:
    return PatternSet(HEAD % levels + "".join(f"{line}\n" for line in lines).encode())


# ---- which pattern ----


@given(models.pattern_sets(), st.lists(models.topics, max_size=20))
def test_a_topic_goes_where_the_rules_say(model: models.Patterns, topics: list[bytes]) -> None:
    patterns = PatternSet(model.text)
    assert [patterns[i].text for i in range(len(patterns))] == model.text.splitlines()[1:]
    for topic in topics:
        place = patterns.find(topic)
        assert place.pattern == model.pattern(topic)
        assert place.levels == model.levels_of(topic)


@given(models.pattern_sets())
def test_slots_have_the_bits_of_their_wildcard(model: models.Patterns) -> None:
    patterns = PatternSet(model.text)
    for number in range(len(patterns)):
        assert list(patterns[number].bits) == model.bits(number)


def test_a_concrete_level_wins_without_backtracking() -> None:
    patterns = set_of("#", "d/+/t", "d/hot/t", "d/+/p")
    names = {topic: patterns[patterns.find(topic).pattern].text for topic in ("d/1/t", "d/hot/t", "d/hot/p", "d/1/p")}
    assert names == {"d/1/t": b"d/+/t", "d/hot/t": b"d/hot/t", "d/hot/p": b"#", "d/1/p": b"d/+/p"}


def test_the_deepest_tail_takes_what_no_pattern_ends_at() -> None:
    patterns = set_of("#", "d/#", "d/+/x/y")
    assert [patterns[patterns.find(t).pattern].text for t in ("d", "d/1", "d/1/x", "d/1/x/y/z", "e", "d/1/x/y")] == [
        b"d/#", b"d/#", b"d/#", b"d/#", b"#", b"d/+/x/y",
    ]  # fmt: skip


def test_a_plus_at_the_first_level_does_not_take_dollar_topics() -> None:
    patterns = set_of("#", "+/a", "$SYS/+")
    assert [patterns.find(t).pattern for t in ("x/a", "$x/a", "$SYS/a", "$SYS/b/c")] == [1, 0, 2, 0]


def test_topics_that_differ_in_empty_levels_differ_in_the_index() -> None:
    patterns = set_of("#")
    places = [patterns.find(topic).levels for topic in ("a/b", "a/b/", "a//b")]
    assert places == [
        (b"a", b"b", MISSING_LEVEL),
        (b"a", b"b", b"", MISSING_LEVEL),
        (b"a", b"", b"b", MISSING_LEVEL),
    ]


def test_levels_beyond_the_indexed_ones_are_one_token() -> None:
    patterns = set_of("#", levels=2)
    found = [patterns.find(topic).levels for topic in ("a/b/c/d", "a/b/", "a/b", "a/b//", "a")]
    expected = [(b"a", b"b", b"c/d"), (b"a", b"b", b""), (b"a", b"b", MISSING_LEVEL), (b"a", b"b", b"/")]
    assert found == [*expected, (b"a", MISSING_LEVEL)]


@given(models.pattern_sets(), models.topics)
def test_a_shortened_topic_is_restored(model: models.Patterns, topic: bytes) -> None:
    patterns = PatternSet(model.text)
    short = patterns.shorten(topic)
    assert len(short) <= len(topic)
    assert patterns.restore(patterns.find(topic).pattern, short) == topic


@given(models.pattern_sets(), st.binary(max_size=8) | models.topics)
def test_what_is_restored_is_no_shorter_and_fits_its_pattern(model: models.Patterns, short: bytes) -> None:
    patterns = PatternSet(model.text)
    for number, line in enumerate(model.lines):
        plain = b"/".join(map(models.token, line.split(b"/")))
        try:
            topic = patterns.restore(number, short)
        except ValueError:
            continue
        assert lib.hmq_topic_matches(plain, len(plain), topic, len(topic)) or topic[:1] in (b"$", b"")


@pytest.mark.parametrize(
    ("pattern", "short"), [("d/+/t", "1/2"), ("d/+/+", "1"), ("d", "x"), ("d/#", "x"), ("d/+/+/#", "1"), ("d/+", "1/")]
)
def test_a_short_form_with_other_levels_is_refused(pattern: str, short: str) -> None:
    with pytest.raises(ValueError, match="does not have the levels that vary"):
        set_of("#", pattern).restore(1, short)


def test_a_pattern_that_is_not_there_is_named() -> None:
    patterns = set_of("#")
    for number in (1, -1):
        with pytest.raises(IndexError, match=r"expected 0\.\.0"):
            patterns.restore(number, "a")
    assert lib.hmq_patterns_restore(patterns._set, 1, b"a", 1, ffi.NULL, 0) == -1


@given(models.topics)
def test_nothing_is_written_where_there_is_no_room(topic: bytes) -> None:
    patterns = set_of("#", "a/+/b", "a/#")
    name = heap(topic)
    for capacity in range(len(topic)):
        out = heap(b"\xaa" * capacity)
        size = lib.hmq_patterns_shorten(patterns._set, name, len(topic), out, capacity)
        assert size <= capacity or copy(out, capacity) == b"\xaa" * capacity
        number, short = patterns.find(topic).pattern, patterns.shorten(topic)
        assert lib.hmq_patterns_restore(patterns._set, number, short, len(short), out, capacity) == len(topic)


@given(st.binary(max_size=20))
def test_any_bytes_have_a_pattern(name: bytes) -> None:
    patterns = set_of("#", "+/+", "a/+/b", levels=3)
    place = ffi.new("hmq_topic_place *")
    lib.hmq_patterns_find(patterns._set, heap(name), len(name), place)
    assert place.pattern < 3


def test_a_wildcard_is_not_a_topic() -> None:
    patterns = set_of("#")
    for ask in (patterns.find, patterns.shorten):
        with pytest.raises(InvalidTopicError):
            ask("a/+")


# ---- the text ----


@given(models.pattern_sets(), st.randoms(use_true_random=False), st.booleans())
def test_equal_sets_are_equal_bytes(model: models.Patterns, shuffled: random.Random, feed: bool) -> None:
    lines = list(model.lines)
    shuffled.shuffle(lines)
    patterns = PatternSet(HEAD % model.levels + b"\n".join(lines) + b"\n" * feed)
    assert patterns.text == model.text
    assert PatternSet(patterns.text) == patterns
    assert hash(PatternSet(patterns.text)) == hash(patterns)
    assert (patterns.levels, len(patterns)) == (model.levels, len(lines))


def test_sets_that_differ_are_not_equal() -> None:
    assert set_of("#") != set_of("#", levels=3)
    assert set_of("#") != set_of("#", "a")
    assert set_of("#") != b"#"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "line 1: '' is no head; expected 'holdmq-patterns 1 levels=<1 to 16>'"),
        (b"#\n", "line 1: '#' is no head"),
        (b"holdmq-patterns 2 levels=8\n#", "line 1: 'holdmq-patterns 2 levels=8' is no head"),
        (HEAD[:-4] + b"0\n#", "is no head; expected 'holdmq-patterns 1"),
        (HEAD[:-4] + b"17\n#", "is no head; expected 'holdmq-patterns 1"),
        (HEAD[:-4] + b"08\n#", "is no head; expected 'holdmq-patterns 1"),
        (HEAD[:-4] + b"8x\n#", "is no head; expected 'holdmq-patterns 1"),
        (HEAD[:-4] + b"\n#", "is no head; expected 'holdmq-patterns 1"),
        (HEAD % 8, "line 1: '' is the end of the text; expected a line '#'"),
        (
            HEAD % 8 + b"a\nb/#",
            "line 3: '' is the end of the text; expected a line '#', so that every topic has a pattern",
        ),
        (HEAD % 8 + b"\n#", "line 2: '' is no pattern; expected at least one character"),
        (
            HEAD % 8 + b"#\na/+b",
            "line 3: '+b' is not part of a pattern; expected a level, +, +<bits>, # or #<bits>, with 1 to 24 bits",
        ),
        (HEAD % 8 + b"#\na/+25/b", "line 3: '+25' is not part of a pattern; expected a level"),
        (HEAD % 8 + b"#\na/+0", "line 3: '+0' is not part of a pattern; expected a level"),
        (HEAD % 8 + b"#\na/#018", "line 3: '#018' is not part of a pattern; expected a level"),
        (HEAD % 8 + b"#\na/+99999", "line 3: '+99999' is not part of a pattern; expected a level"),
        (HEAD % 8 + b"#\na/b+", "line 3: 'b+' is not part of a pattern; expected a level"),
        (HEAD % 8 + b"#\na/b\tc", "line 3: 'b?c' is not part of a pattern; expected a level"),
        (HEAD % 8 + b"#\r\n", "line 2: '#?' is not part of a pattern; expected a level"),
        (HEAD % 8 + b"#\na/#/b", "line 3: 'a/#/b' has a # before its last level; expected # only there"),
        (
            HEAD % 2 + b"#\na/b/c",
            "line 3: 'a/b/c' has too many levels before its #; expected at most the levels= of the head",
        ),
        (HEAD % 8 + b"#\n\xff", "line 3: '?' is invalid text; expected UTF-8 without U+0000"),
        (HEAD % 8 + b"#\na\0", "line 3: 'a?' is invalid text; expected UTF-8"),
        (HEAD % 8 + b"#\n" + b"a" * 65536, "line 3: '" + "a" * 40 + "...' is too long; expected at most 65535 bytes"),
        (HEAD % 8 + b"a/+\n#\na/+18\n", "line 4: 'a/+18' is in the set already; expected each pattern once"),
        (HEAD % 8 + b"a/b\na/b\n#", "line 3: 'a/b' is in the set already; expected each pattern once"),
        (HEAD % 8 + b"#\n" + b"a" * 1048576, "too long; expected at most 1048576 bytes"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_what_was_expected(text: bytes, message: str) -> None:
    with pytest.raises(InvalidPatternsError) as caught:
        PatternSet(text)
    assert message in str(caught.value)


def test_a_pattern_may_have_all_the_levels_that_are_indexed() -> None:
    patterns = set_of("#", "+/+", "+/+/#", levels=2)
    assert [patterns[i].bits for i in range(3)] == [(20,) * 3, (20, 20), (20, 20, 20)]
    widest = set_of("/".join(["+"] * 16 + ["#"]), "#", levels=16)
    assert [len(widest[i].bits) for i in range(2)] == [17, 17]


def test_there_are_at_most_4096_patterns() -> None:
    lines = [b"#", *(b"p/%d" % i for i in range(MAX_PATTERNS - 1))]
    patterns = PatternSet(HEAD % 8 + b"\n".join(lines))
    assert len(patterns) == MAX_PATTERNS
    assert all(patterns[patterns.find(line).pattern].text == line for line in lines[1:])
    with pytest.raises(InvalidPatternsError, match="line 4098: 'q' is one pattern too many; expected at most 4096"):
        PatternSet(HEAD % 8 + b"\n".join([*lines, b"q"]))


@pytest.mark.parametrize("capacity", [0, 1, 10, 200])
def test_an_error_is_cut_to_its_room(capacity: int) -> None:
    room, text = heap(b"\xff" * capacity), heap(b"x")
    allocator = ffi.new("hmq_allocator *", LIBC)
    assert lib.hmq_patterns_parse(allocator, text, 1, room, capacity) == ffi.NULL
    assert capacity == 0 or b"line 1: 'x' is no head".startswith(copy(room, capacity).split(b"\0")[0][:18])


WORDS = [b"a", b"/", b"+", b"#", b"\n", b"18", b"$", b"\0", b"holdmq-patterns 1 levels=3\n", b"\xc3\xa9"]


@given(st.lists(st.sampled_from(WORDS), max_size=20).map(b"".join), st.booleans())
def test_no_text_reads_outside_itself(words: bytes, head: bool) -> None:
    text = HEAD % 3 * head + words
    allocator = ffi.new("hmq_allocator *", LIBC)
    error = heap(bytes(100))
    made = lib.hmq_patterns_parse(allocator, heap(text), len(text), error, 100)
    if made == ffi.NULL:
        assert ffi.string(error, 100).startswith(b"line ")
    lib.hmq_patterns_free(made)


# ---- memory ----


def test_a_set_is_one_block_and_gives_it_back() -> None:
    books = Books()
    patterns = PatternSet(HEAD % 8 + b"#\na/+\nb", allocator=books.allocator)
    assert len(books.sizes) == 1
    del patterns
    assert books.sizes == {}
    with pytest.raises(InvalidPatternsError):
        PatternSet(HEAD % 8 + b"#\n#", allocator=books.allocator)
    assert books.sizes == {}


@pytest.mark.parametrize("call", [1, 2])
def test_without_memory_there_is_no_set_and_an_error_says_so(call: int) -> None:
    books = Books()
    books.fail_at(call)
    with pytest.raises(MemoryError, match="out of memory for a pattern set of 29 bytes"):
        PatternSet(HEAD % 8 + b"#\n", allocator=books.allocator)
    assert books.sizes == {}
