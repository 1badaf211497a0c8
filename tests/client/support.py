"""What several tests of the client share."""

from holdmq import Entry, Message


def message_of(entry: Entry) -> Message:
    """The message of an entry that has one."""
    message = entry.message
    assert message is not None
    return message
