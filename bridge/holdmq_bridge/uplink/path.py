"""Stops messages that circulate between brokers: a user property lists the brokers that each has passed (MQTT 5.0).

    user property  holdmq-path = "<id> <id> ..."      the oldest first; each broker has an id, stored in its server

Links in a ring, or two brokers with links to each other, would carry a message round forever.  A single link prevents
an echo by No Local on both sides.  The path stops messages that come back by another way.

    in     a message whose path has this broker is dropped; else this broker is appended
    out    a message whose path has this broker before the end came back by another link: it is dropped;
           if this broker is not at the end, it is appended; a path of the largest length is dropped

So a message passes the links of each broker at most once, and at most `most` brokers.  MQTT 3.1.1 has no user
properties: a ring with a link of 3.1.1 is not detected.
"""

from dataclasses import replace

from holdmq.core import mqtt

NAME = b"holdmq-path"
_MOST_BYTES = 4096  # of a path; the rest of a longer one is ignored


class Path:
    """Marks the messages of one broker's links.

    Args:
        broker: the id of this broker: printable, without spaces.
        most: brokers that a message may pass, including this one.
    """

    def __init__(self, broker: str, most: int) -> None:
        self._own = broker.encode()
        self._most = most
        self._alone = mqtt.Properties(user_properties=((NAME, self._own),))

    def inward(self, properties: mqtt.Properties) -> mqtt.Properties | None:
        """The properties of an incoming message, with this broker in its path; None: drop the message."""
        before = _path(properties)
        if self._own in before or len(before) >= self._most:
            return None
        return self._marked(properties, before)

    def outward(self, properties: mqtt.Properties) -> mqtt.Properties | None:
        """The properties of an outgoing message, with this broker in its path; None: drop the message."""
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
