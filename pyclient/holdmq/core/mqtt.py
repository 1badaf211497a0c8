"""Decodes and encodes MQTT packets of all types, 3.1.1 and 5.0.

The codec of the core does the work (src/mqtt/mqtt.h). Packets that it accepts are valid, texts and properties included.
Topics, filters, client ids, user names and the texts of properties are bytes (well-formed UTF-8), because they are
passed on to the server as bytes.

Without a `version` everything speaks 3.1.1 (protocol level 4); `PROTOCOL_LEVEL_5` is 5.0. Treat packets as values. The
session, not this module, decides which packet may be sent when.
"""

from holdmq.core._mqtt_decode import ANY_VERSION, MAX_PACKET_BYTES, Decoded, decode_many
from holdmq.core._mqtt_encode import (
    SUBACK_FAILURE,
    encode,
    encode_auth,
    encode_connack,
    encode_connect,
    encode_disconnect,
    encode_pingreq,
    encode_pingresp,
    encode_suback,
    encode_subscribe,
    encode_unsuback,
    encode_unsubscribe,
)
from holdmq.core._mqtt_encode_publish import (
    encode_puback,
    encode_pubcomp,
    encode_publish,
    encode_pubrec,
    encode_pubrel,
)
from holdmq.core._mqtt_errors import InvalidPacketError, ProtocolError
from holdmq.core._mqtt_packets import (
    PROTOCOL_LEVEL,
    PROTOCOL_LEVEL_5,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from holdmq.core._mqtt_properties import NO_PROPERTIES, WILL, Properties, decode_properties, encode_properties

__all__ = [
    "ANY_VERSION",
    "MAX_PACKET_BYTES",
    "NO_PROPERTIES",
    "PROTOCOL_LEVEL",
    "PROTOCOL_LEVEL_5",
    "SUBACK_FAILURE",
    "WILL",
    "Auth",
    "Connack",
    "Connect",
    "Decoded",
    "Disconnect",
    "InvalidPacketError",
    "Packet",
    "PacketType",
    "Pingreq",
    "Pingresp",
    "Properties",
    "ProtocolError",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "Suback",
    "Subscribe",
    "Subscription",
    "Unsuback",
    "Unsubscribe",
    "Will",
    "decode_many",
    "decode_properties",
    "encode",
    "encode_auth",
    "encode_connack",
    "encode_connect",
    "encode_disconnect",
    "encode_pingreq",
    "encode_pingresp",
    "encode_properties",
    "encode_puback",
    "encode_pubcomp",
    "encode_publish",
    "encode_pubrec",
    "encode_pubrel",
    "encode_suback",
    "encode_subscribe",
    "encode_unsuback",
    "encode_unsubscribe",
]
