"""How a message that has been here before is known: the brokers it has passed stand in a user property (MQTT 5.0).

    user property  holdmq-path = "<id> <id> ..."      the oldest first; an id is the broker's own, kept in the server

Links that stand in a ring, or two brokers with links to each other, would carry a message round for ever.  What the
single link can do against that is done elsewhere (no local on both sides); this is for what comes back by another way.

    in     a message whose path names this broker is not let in; else this broker is appended
    out    a message whose path names this broker before its end came back by somebody else's link: it stays;
           if this broker is not at the end it is appended; a path as long as the bound allows goes no further

So each message passes each broker's links at most once, and at most `most` brokers.  MQTT 3.1.1 has no such property:
a ring of which one link speaks 3.1.1 is not seen.
"""

from dataclasses import replace

from holdmq.core import mqtt

NAME = b"holdmq-path"
_MOST_BYTES = 4096  # of a path; a longer one is somebody's mischief


class Path:
    """Marks the messages of one broker's links.

    Args:
        broker: the id of this broker: printable, without spaces.
        most: brokers that a message may have passed, this one included.
    """

    def __init__(self, broker: str, most: int) -> None:
        self._own = broker.encode()
        self._most = most
        self._alone = mqtt.Properties(user_properties=((NAME, self._own),))

    def inward(self, properties: mqtt.Properties) -> mqtt.Properties | None:
        """The properties of a message that came in, marked; None: it has been here."""
        before = _path(properties)
        if self._own in before or len(before) >= self._most:
            return None
        return self._marked(properties, before)

    def outward(self, properties: mqtt.Properties) -> mqtt.Properties | None:
        """The properties of a message that is to go out, marked; None: it has been here before, or far enough."""
        before = _path(properties)
        if not before:
            return self._marked(properties, before)
        if self._own in before[:-1] or len(before) > self._most:
            return None
        if before[-1] == self._own:
            return properties
        return self._marked(properties, before) if len(before) < self._most else None

    def _marked(self, properties: mqtt.Properties, before: list[bytes]) -> mqtt.Properties:
        if properties is mqtt.NO_PROPERTIES:
            return self._alone
        others = tuple(pair for pair in properties.user_properties if pair[0] != NAME)
        return replace(properties, user_properties=(*others, (NAME, b" ".join([*before, self._own]))))


def _path(properties: mqtt.Properties) -> list[bytes]:
    found = b" ".join(value for name, value in properties.user_properties if name == NAME)
    return found[:_MOST_BYTES].split()
