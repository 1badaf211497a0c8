"""A connection to the other broker, for asyncio.

    listener.on_packets ◄── decode_many ◄── Client (paho) ◄── socket
    write ──► unsent ──► Client (paho) ──► socket

Invariants
 1. An Upstream connects at most once.  `lost` has a result when the connection has ended.  After that, only packets
    that were read before still arrive.
 2. Packets reach the listener in the order in which they arrived, and go out in the order of `write`.
 3. While reading is paused, nothing is read.  Callers of `write` that could exceed the memory check `backlog` first.
"""

import asyncio
import functools
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from holdmq.core import mqtt
from holdmq_bridge.base.logs import Log
from holdmq_bridge.sockets.tls import load_authorities, load_certificate
from holdmq_bridge.uplink.client import Client
from holdmq_bridge.uplink.settings import MAX_MQTT_PACKET_BYTES, ConnectionSettings

READS_AT_ONCE = 256  # packets, before the event loop continues
CHUNK_BYTES = 262_144  # for paho at once: with each write it copies the rest
TICK_S = 1.0
GOODBYE_S = 2.0
UNKNOWN_LEVEL = frozenset([1, 0x84])  # the code of 3.1.1, and that of 5.0, which some brokers send instead

log = Log("uplink")


class RefusedError(Exception):
    """The other broker refused the CONNECT.

    Attributes:
        unknown_level: the broker does not know the protocol level (3.1.1).
    """

    def __init__(self, why: str, *, unknown_level: bool = False) -> None:
        super().__init__(why)
        self.unknown_level = unknown_level


class LostError(Exception):
    """The connection to the other broker was lost. The text says how."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The content of a CONNACK, with the defaults of the standard (MQTT 5.0, section 3.2.2.3)."""

    session_present: bool
    receive_maximum: int = 65535
    maximum_qos: int = 2
    retain_available: bool = True
    maximum_packet_size: int = MAX_MQTT_PACKET_BYTES
    session_expiry_s: int | None = None


@dataclass(frozen=True, slots=True)
class Hello:
    """How to connect.

    Attributes:
        clean: discard a former session.
        keep: the session outlives the connection.
        bridge: ask to be treated as a bridge (3.1.1).
        state_topic: of the will, which says 0; empty: no will.
    """

    clean: bool
    keep: bool
    bridge: bool
    state_topic: str


class Upstream:
    """One connection.  `on_packets` gets lists of packets, without those that paho handles."""

    def __init__(self, settings: ConnectionSettings, on_packets: Callable[[list[mqtt.Packet]], None]) -> None:
        self._settings = settings
        self._on_packets = on_packets
        self._loop = asyncio.get_running_loop()
        self._client: Client | None = None
        self._socket: Any = None
        self._unsent = bytearray()
        self._written = asyncio.Event()
        self._written.set()
        self._flush_is_due = False
        self._paused = False
        self._connack: asyncio.Future[Accepted] = self._loop.create_future()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self.version = mqtt.PROTOCOL_LEVEL_5 if settings.protocol == "5.0" else mqtt.PROTOCOL_LEVEL

    # ---- life ------------------------------------------------------------------------------------------------------

    async def connect(self, hello: Hello) -> Accepted:
        """Connects and waits for the CONNACK.

        Raises:
            OSError: the broker cannot be reached, or does not answer in time.
            RefusedError: it refused the CONNECT.
            LostError: it closed the connection instead.
        """
        client = self._client = self._make_client(hello)
        host, port = self._settings.host_and_port()
        more: dict[str, Any] = {}
        if self.version == mqtt.PROTOCOL_LEVEL_5:
            more = {"clean_start": hello.clean, "properties": self._connect_properties(hello)}
        dial = functools.partial(client.connect, host, port, self._settings.keepalive_s, **more)
        dialling = self._loop.run_in_executor(None, dial)  # it blocks during the handshakes
        try:
            async with asyncio.timeout(2 * self._settings.connect_timeout_s):
                await asyncio.shield(dialling)
                self._begin(client)
                outcomes: list[asyncio.Future[Any]] = [self._connack, self.lost]
                await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            dialling.add_done_callback(self._abort_late_connection)
            raise
        if not self._connack.done():
            why = self.lost.result()
            if client.connack_code in UNKNOWN_LEVEL and self.version == mqtt.PROTOCOL_LEVEL:
                raise RefusedError("it does not know the protocol level", unknown_level=True)
            raise LostError(why)
        return self._connack.result()

    def _abort_late_connection(self, dialling: asyncio.Future[Any]) -> None:
        if not dialling.cancelled() and dialling.exception() is None:
            self.abort()

    def _begin(self, client: Client) -> None:
        self._socket = client.socket()
        if self._socket is None:
            raise OSError("the connection was lost at once")
        self._loop.add_reader(self._socket, self._read)
        self._schedule_flush()
        self._loop.call_later(TICK_S, self._tick)

    async def close(self) -> None:
        """Disconnects, so that the will is not published.  Sends everything unsent first, for at most GOODBYE_S."""
        if self._client is None or self.lost.done():
            return
        self._schedule_flush()
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self._written.wait()
                self._client.disconnect()
                await asyncio.shield(self.lost)
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        """Ends the connection without a DISCONNECT."""
        self._lose("given up")

    def _lose(self, why: str) -> None:
        if self.lost.done():
            return
        self.lost.set_result(why)
        self._written.set()
        if self._connack.done() and not self._connack.cancelled():
            self._connack.exception()  # callers learn of the error by `lost`
        self._unwatch()
        client = self._client
        if client is not None:
            client.on_socket_close = client.on_disconnect = None
            sock = client.socket()
            if sock is not None:
                sock.close()

    def _unwatch(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket = None

    # ---- reading ---------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stops reading until `resume`."""
        if not self._paused and self._socket is not None:
            self._loop.remove_reader(self._socket)
        self._paused = True

    def resume(self) -> None:
        """Reads again."""
        if self._paused and self._socket is not None:
            self._loop.add_reader(self._socket, self._read)
            self._loop.call_soon(self._read)  # TLS may have bytes that the socket no longer has
        self._paused = False

    def _read(self) -> None:
        client = self._client
        if client is None or self.lost.done() or self._paused:
            return
        again = False
        try:
            for _ in range(READS_AT_ONCE):
                before = client.packets_read
                if client.loop_read() or client.socket() is None:
                    break
                if client.packets_read == before:
                    again = bool(getattr(self._socket, "pending", int)())
                    break
            else:
                again = True
        except Exception as error:  # noqa: BLE001 - whatever the library makes of the bytes, it ends this connection
            log.defect("the other broker sent data that cannot be read", error, link=self._settings.name)
            self._lose(f"cannot be read: {error}")
        self._deliver(client.take())
        if client.socket() is None:
            self._lose("it closed the connection")
        elif again:
            self._loop.call_soon(self._read)

    def _deliver(self, data: bytes) -> None:
        if not data:
            return
        decoded = mqtt.decode_many(data, version=self.version)
        if decoded.packets:
            self._on_packets(decoded.packets)
        if decoded.error is not None or decoded.consumed != len(data):
            self._lose(f"it sent what is not MQTT: {decoded.error}")

    # ---- writing ---------------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Bytes that are not written yet, without those in paho (at most one chunk)."""
        return len(self._unsent)

    def write(self, packets: bytes) -> None:
        """Sends whole packets.  Unsent packets are lost with the connection."""
        self._unsent += packets
        self._written.clear()
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        client = self._client
        if client is None or self._socket is None or self.lost.done():
            return
        client.loop_write()
        while self._unsent and not client.want_write() and client.socket() is not None:
            chunk = bytes(self._unsent[:CHUNK_BYTES])
            del self._unsent[:CHUNK_BYTES]
            client.send(chunk)
            client.loop_write()
        if client.socket() is None:
            self._lose("it closed the connection")
        elif client.want_write():
            self._loop.add_writer(self._socket, self._flush)
        else:
            self._loop.remove_writer(self._socket)
            self._written.set()

    def _tick(self) -> None:
        client = self._client
        if client is None or self.lost.done():
            return
        if client.loop_misc() or client.socket() is None:
            self._lose("no sign of life")
            return
        self._loop.call_later(TICK_S, self._tick)

    # ---- paho ------------------------------------------------------------------------------------------------------

    def _make_client(self, hello: Hello) -> Client:
        settings = self._settings
        five = self.version == mqtt.PROTOCOL_LEVEL_5
        client = Client(
            settings.remote_client_id(),
            paho.MQTTv5 if five else paho.MQTTv311,
            clean_session=None if five else hello.clean,
            transport="unix" if settings.unix else settings.transport,
        )
        client.connect_timeout = settings.connect_timeout_s
        if settings.transport == "websockets":
            client.ws_set_options(path=settings.ws_path)
        if settings.tls:
            client.tls_set_context(_tls_context(settings))
            client.tls_insecure_set(settings.tls_insecure)
        if settings.username is not None:
            client.username_pw_set(settings.username, settings.secret())
        if hello.bridge and not five:
            client.enable_bridge_mode()
        if hello.state_topic:
            client.will_set(hello.state_topic, b"0", qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_socket_close = lambda *_: self._unwatch()
        client.on_socket_register_write = self._on_register_write
        return client

    def _connect_properties(self, hello: Hello) -> Properties:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call] # paho declares no types here
        properties.SessionExpiryInterval = self._settings.session_expiry_s if hello.keep else 0
        properties.ReceiveMaximum = self._settings.receive_maximum
        if self._settings.max_packet_bytes < MAX_MQTT_PACKET_BYTES:
            properties.MaximumPacketSize = self._settings.max_packet_bytes
        return properties

    def _on_register_write(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._schedule_flush)  # also from the thread that connects

    def _on_connect(self, _client: object, _data: object, flags: Any, reason: Any, properties: Any) -> None:
        if self._connack.done():
            return
        if reason.is_failure:
            self._connack.set_exception(RefusedError(str(reason)))
            return
        self._connack.set_result(
            Accepted(
                session_present=bool(flags.session_present),
                receive_maximum=getattr(properties, "ReceiveMaximum", 65535),
                maximum_qos=getattr(properties, "MaximumQoS", 2),
                retain_available=bool(getattr(properties, "RetainAvailable", 1)),
                maximum_packet_size=getattr(properties, "MaximumPacketSize", MAX_MQTT_PACKET_BYTES),
                session_expiry_s=getattr(properties, "SessionExpiryInterval", None),
            )
        )

    def _on_disconnect(self, _client: object, _data: object, flags: Any, reason: Any, _properties: object) -> None:
        how = "it said" if flags.is_disconnect_packet_from_server else "the connection ended"
        self._lose(f"{how}: {reason}")


def _tls_context(settings: ConnectionSettings) -> ssl.SSLContext:
    if settings.tls_ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_authorities(context, "tls_ca", settings.tls_ca)
    if settings.tls_certificate is not None:
        load_certificate(context, settings.tls_certificate, settings.tls_key)
    return context
