"""How TBMQ 2.x keeps the messages of persistent device sessions: the same keys and steps as Lua scripts, as a baseline.

The text is this project's own, written after the published description. What the scripts do wrong they do wrong here
too (an expiry of 0 stops a batch half-way, a release loses its time to live, the limit counts expired references, a
fetch ignores its limit): sessions of HoldMQ are compared with them, and have to read and continue what they leave.

    {c}_messages            ZSET    {c}_messages_<packet id>, score grows
    {c}_messages_<pid>      STRING  JSON, with a time to live
    {c}_last_packet_id      STRING  decimal, without one
"""

import base64
import json
from typing import Any

import redis

MAX_PACKET_ID = 65535

_ADD = """
local queue, counter = KEYS[1], KEYS[2]
local limit, batch, ttl = tonumber(ARGV[1]), cjson.decode(ARGV[2]), tonumber(ARGV[3])
local before = tonumber(redis.call('GET', counter) or 0)
local newest = redis.call('ZRANGE', queue, 0, 0, 'REV', 'WITHSCORES')
local score = tonumber(newest[2] or before)
local id = before
for _, message in ipairs(batch) do
    id = id % 65535 + 1
    score = score + 1
    message.packetId = id
    local name = queue .. '_' .. id
    redis.call('SET', name, cjson.encode(message), 'EX', message.msgExpiryInterval or ttl)
    redis.call('ZADD', queue, score, name)
end
redis.call('SET', counter, id)
local surplus = redis.call('ZCARD', queue) - limit
if surplus > 0 then
    for _, name in ipairs(redis.call('ZRANGE', queue, 0, surplus - 1)) do
        redis.call('DEL', name)
        redis.call('ZREM', queue, name)
    end
end
return before
"""

_GET = """
local found = {}
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    if redis.call('EXISTS', name) == 1 then
        found[#found + 1] = redis.call('GET', name)
    else
        redis.call('ZREM', KEYS[1], name)
    end
end
return found
"""

_REMOVE = """
local name = KEYS[1] .. '_' .. ARGV[1]
redis.call('ZREM', KEYS[1], name)
redis.call('DEL', name)
return redis.status_reply('OK')
"""

_RELEASE = """
local name = KEYS[1] .. '_' .. ARGV[1]
local text = redis.call('GET', name)
if text then
    local message = cjson.decode(text)
    message.packetType = 'PUBREL'
    redis.call('SET', name, cjson.encode(message))
end
return redis.status_reply('OK')
"""

_CLEAR = """
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    redis.call('DEL', name)
end
redis.call('DEL', KEYS[1])
redis.call('DEL', KEYS[2])
return redis.status_reply('OK')
"""


class TbmqSession:
    """The session of a client as TBMQ's broker uses it.

    Args:
        client: where it lives.
        client_id: the MQTT client id; goes into the keys as it is.
        prefix: the cache prefix.
    """

    def __init__(self, client: redis.Redis, client_id: str = "c", prefix: str = "") -> None:
        self.client = client
        self.client_id = client_id
        self.queue = f"{prefix}{{{client_id}}}_messages"
        self.counter = f"{prefix}{{{client_id}}}_last_packet_id"
        self._add = client.register_script(_ADD)
        self._get = client.register_script(_GET)
        self._remove = client.register_script(_REMOVE)
        self._release = client.register_script(_RELEASE)
        self._clear = client.register_script(_CLEAR)

    def message(self, payload: bytes | str, **fields: Any) -> dict[str, Any]:
        """A message as the broker builds it; `fields` are added, or replace those of this name."""
        data = payload.encode() if isinstance(payload, str) else payload
        return {
            "packetType": "PUBLISH",
            "payload": base64.b64encode(data).decode(),
            "time": 1736333110026,
            "clientId": self.client_id,
            "retained": False,
            "packetId": 0,
            "topicName": "europe/ua/kyiv/client/0",
            "qos": 1,
            **fields,
        }

    def add(self, *messages: dict[str, Any], limit: int = 10000, ttl: int = 604800) -> list[int]:
        """Append messages; returns the packet ids that they got, as the broker counts them."""
        batch = json.dumps(messages, separators=(",", ":"))
        before = int(self._add([self.queue, self.counter], [limit, batch, ttl]))
        return [(before + number) % MAX_PACKET_ID + 1 for number in range(len(messages))]

    def fetch(self) -> list[dict[str, Any]]:
        """All messages, oldest first."""
        return [json.loads(text) for text in self._get([self.queue], [10000])]

    def remove(self, packet_id: int) -> None:
        """PUBACK or PUBCOMP."""
        self._remove([self.queue], [packet_id])

    def release(self, packet_id: int) -> None:
        """PUBREC."""
        self._release([self.queue], [packet_id])

    def clear(self) -> None:
        """Drop the session."""
        self._clear([self.queue, self.counter], [])


def payload_of(message: dict[str, Any]) -> bytes:
    """The payload of a message."""
    return base64.b64decode(message["payload"])
