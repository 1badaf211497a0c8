"""Where a subscription begins to read history: what clients may write."""

import pytest

from holdmq_bridge.session.replay_start import StartError, parse_start, split_filter, start_of_properties

NOW_MS = 1_000_000_000_000


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (b"earliest", "earliest"),
        (b"now", "now"),
        (b"0", "0"),
        (b"1764547200000", "1764547200000"),
        (b"90s", str(NOW_MS - 90_000)),
        (b"15m", str(NOW_MS - 15 * 60_000)),
        (b"24h", str(NOW_MS - 24 * 3_600_000)),
        (b"7d", str(NOW_MS - 7 * 86_400_000)),
        (b"999999999d", "0"),
        (b"2001-09-09T01:46:40Z", "1000000000000"),
        (b"2001-09-09T01:46:40.250", "1000000000250"),
        (b"2001-09-09T03:46:40+02:00", "1000000000000"),
        (b"2001-09-09", "999993600000"),
    ],
)
def test_a_start_is_a_word_a_time_or_an_age(text: bytes, start: str) -> None:
    assert parse_start(text, NOW_MS) == start


@pytest.mark.parametrize(
    "text",
    [b"", b"yesterday", b"-1", b"+5", b"1.5", b"5w", b"1900-01-01", b"9" * 16, b"\xff", "٣".encode(), b"s"],
)
def test_anything_else_is_refused_with_what_is_expected(text: bytes) -> None:
    with pytest.raises(StartError, match="expected earliest, now"):
        parse_start(text, NOW_MS)


@pytest.mark.parametrize(
    ("topic_filter", "meant"),
    [
        (b"a/#", (b"a/#", None)),
        (b"$replay/earliest/a/#", (b"a/#", b"earliest")),
        (b"$replay/24h//a", (b"/a", b"24h")),
        (b"$share/g/$replay/now/a/+", (b"$share/g/a/+", b"now")),
        (b"$share/g/a", (b"$share/g/a", None)),
        (b"a/$replay/now/b", (b"a/$replay/now/b", None)),
        (b"$replayed", (b"$replayed", None)),
    ],
)
def test_a_filter_may_name_its_start(topic_filter: bytes, meant: tuple[bytes, bytes | None]) -> None:
    assert split_filter(topic_filter) == meant


@pytest.mark.parametrize("topic_filter", [b"$replay/earliest", b"$replay/earliest/", b"$share/g/$replay/now"])
def test_a_start_without_a_filter_is_refused(topic_filter: bytes) -> None:
    with pytest.raises(StartError, match=r"expected \$replay/<start>/<filter>"):
        split_filter(topic_filter)


def test_of_several_properties_the_last_counts() -> None:
    assert start_of_properties([]) is None
    assert start_of_properties([(b"replay-from", b"1h"), (b"x", b"y"), (b"stream-offset", b"now")]) == b"now"
