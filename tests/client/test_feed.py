"""What a subscription claims of its messages, over all orders in which replies can come."""

from holdmq import ChannelMessage, Deliver
from holdmq._feed import MAX_CHANNELS_SEEN, Feed


def connected(deliver: Deliver | None = Deliver.LAST) -> Feed:
    """A feed in its first life, subscribed to one channel."""
    feed = Feed()
    begin(feed, deliver)
    return feed


def begin(feed: Feed, deliver: Deliver | None = Deliver.LAST) -> None:
    """Begins a life."""
    feed.begin({} if deliver is None else {"ch": deliver})
    assert feed.confirm(b"ch")


def message(feed: Feed, data: bytes, channel: bytes = b"ch") -> ChannelMessage:
    """Lets a message come."""
    return feed.message(channel, data, None)


def test_before_the_fence_nothing_is_claimed_and_after_it_all_is_live() -> None:
    feed = connected()
    assert message(feed, b"1").held is None
    feed.pong("something else")
    assert message(feed, b"2").held is None
    feed.pong(feed.fence.encode())
    assert message(feed, b"3").held is False


def test_the_fence_of_a_former_life_proves_nothing() -> None:
    feed = connected()
    former = feed.fence
    begin(feed)
    feed.pong(former)
    assert message(feed, b"1").held is None
    feed.pong(feed.fence)
    assert message(feed, b"2").held is False


def test_where_nothing_is_handed_over_all_is_live() -> None:
    assert message(connected(Deliver.NONE), b"1").held is False


def test_of_backlogs_and_unknown_policies_nothing_is_claimed() -> None:
    for deliver in (Deliver.HELD, None):
        feed = connected(deliver)
        feed.pong(feed.fence)
        assert message(feed, b"1").held is None


def test_a_second_confirmation_of_a_name_is_a_new_life() -> None:
    feed = connected()
    assert not feed.confirm(b"other")
    assert feed.reconnections == 0
    feed.pong(feed.fence)
    assert feed.confirm("ch")
    assert feed.reconnections == 1
    assert message(feed, b"1").held is None


def test_failed_attempts_are_not_reconnections() -> None:
    feed = connected()
    for _ in range(3):
        feed.begin({})
    assert not feed.confirmed
    assert feed.reconnections == 0


def test_the_first_message_of_a_life_is_a_repeat_if_it_equals_the_last_one() -> None:
    feed = connected()
    assert [message(feed, b"1").repeat, message(feed, b"1").repeat] == [False, False]
    begin(feed)
    assert [message(feed, b"1").repeat, message(feed, b"1").repeat] == [True, False]
    begin(feed)
    assert [message(feed, b"2").repeat, message(feed, b"1").repeat] == [False, False]


def test_what_was_handed_over_before_is_a_repeat_though_newer_messages_came_since() -> None:
    feed = connected()
    message(feed, b"kept")
    feed.pong(feed.fence)
    message(feed, b"live")
    for _ in range(2):
        begin(feed)
        assert message(feed, b"kept").repeat
        feed.pong(feed.fence)
        assert not message(feed, b"kept").repeat
    begin(feed)
    feed.pong(feed.fence)
    assert message(feed, b"kept") == ChannelMessage(b"ch", b"kept", held=False)


def test_a_backlog_is_never_a_repeat() -> None:
    feed = connected(Deliver.HELD)
    message(feed, b"1")
    begin(feed, Deliver.HELD)
    assert not message(feed, b"1").repeat


def test_repeats_are_distinguished_by_channel() -> None:
    feed = connected(None)
    message(feed, b"1", b"a")
    begin(feed, None)
    assert not message(feed, b"1", b"b").repeat
    assert message(feed, b"1", b"a").repeat


def test_memory_is_bounded_by_forgetting_the_channel_heard_longest_ago() -> None:
    feed = connected(None)
    for number in range(MAX_CHANNELS_SEEN + 1):
        message(feed, b"1", b"%d" % number)
    begin(feed, None)
    assert not message(feed, b"1", b"0").repeat
    assert message(feed, b"1", b"%d" % MAX_CHANNELS_SEEN).repeat
