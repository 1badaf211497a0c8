"""The core that module, client and bridge share, from Python: topics, trie, keys, records, policies, MQTT packets.

It is C (src/), reached through cffi, so that no two parts can disagree about a topic or a byte. Nothing here does I/O,
reads a clock or keeps state of its own. Texts may be str (taken as UTF-8) or bytes; what comes back is bytes.

Two parts have a module of their own: the MQTT packet codec, `holdmq.core.mqtt`, and the engine of an MQTT front end,
`holdmq.core.engine`.
"""

from holdmq.core.keys import (
    Suffix,
    client_id,
    is_session_key,
    message_key,
    message_packet_id,
    retained_key,
    retained_topic,
    session_key,
    session_key_of,
    session_name,
    slot_of,
)
from holdmq.core.packet_ids import MAX_PACKET_ID, allocate_packet_id, next_packet_id, serial_of, serial_round
from holdmq.core.policies import Deliver, Hold, InvalidPolicyError, Policy, Rule
from holdmq.core.records import (
    MAX_TIME_MS,
    Delivery,
    DeliveryKind,
    InvalidRecordError,
    Record,
    RecordType,
    is_record,
)
from holdmq.core.topics import (
    MAX_TOPIC_BYTES,
    MAX_TOPIC_LEVELS,
    InvalidTopicError,
    check_topic_filter,
    check_topic_name,
    glob_matches,
    matches,
    split_share,
)
from holdmq.core.trie import Match, SetResult, TopicTrie

__all__ = [
    "MAX_PACKET_ID",
    "MAX_TIME_MS",
    "MAX_TOPIC_BYTES",
    "MAX_TOPIC_LEVELS",
    "Deliver",
    "Delivery",
    "DeliveryKind",
    "Hold",
    "InvalidPolicyError",
    "InvalidRecordError",
    "InvalidTopicError",
    "Match",
    "Policy",
    "Record",
    "RecordType",
    "Rule",
    "SetResult",
    "Suffix",
    "TopicTrie",
    "allocate_packet_id",
    "check_topic_filter",
    "check_topic_name",
    "client_id",
    "glob_matches",
    "is_record",
    "is_session_key",
    "matches",
    "message_key",
    "message_packet_id",
    "next_packet_id",
    "retained_key",
    "retained_topic",
    "serial_of",
    "serial_round",
    "session_key",
    "session_key_of",
    "session_name",
    "slot_of",
    "split_share",
]
