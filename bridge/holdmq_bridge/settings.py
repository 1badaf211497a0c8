"""Every limit and address of the bridge, with its default, its unit and where it can be set.

One table: the command line, the environment (prefix HOLDMQ_BRIDGE_, e.g. HOLDMQ_BRIDGE_MAX_INFLIGHT) and the tests read
it, nothing else holds a default.  The object is frozen: what runs does not change under anybody's feet.
"""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from holdmq_bridge.auth import AuthSettings
from holdmq_bridge.target import Target

# A message goes to the bridge as one reply, which has to stay below the server's bound on what a client may have unread
# (client-output-buffer-limit pubsub 32mb), together with what is pushed meanwhile.
MOST_PACKET_BYTES = 16_777_216
MAX_PACKET_ID = 65535
MAX_EXPIRY_S = 4_294_967_295
MAX_RATE = 1_000_000
MAX_BYTES = 2_147_483_647

SAME_HOST, ANY_ORIGIN = "same-host", "*"  # words in ws_origins

Port = Annotated[int, Field(ge=0, le=65535)]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+|null")


class Settings(AuthSettings, BaseSettings):
    """Addresses and limits of one bridge process.  The fields' descriptions are the help texts of the command line."""

    model_config = SettingsConfigDict(env_prefix="HOLDMQ_BRIDGE_", frozen=True, extra="forbid")

    # Listeners
    host: str = Field("127.0.0.1", description="address to listen on")
    port: Port | None = Field(1883, description="port for MQTT; 0 takes a free one, -1 switches it off")
    tls_port: Port | None = Field(None, description="port for MQTT over TLS")
    ws_port: Port | None = Field(None, description="port for MQTT over WebSocket")
    wss_port: Port | None = Field(None, description="port for MQTT over WebSocket over TLS")
    ws_path: str = Field("/mqtt", description="path of the WebSocket; others are answered with 404")
    ws_max_frame_bytes: Annotated[int, Field(ge=125)] = Field(
        1_048_576, description="size of one WebSocket message; a packet may be cut over several"
    )
    ws_origins: str = Field(
        SAME_HOST,
        description="web pages that may connect by WebSocket: origins (https://app.example.com), separated by commas; "
        "same-host: pages of the host that they connect to; *: all. Clients that are no web pages send no origin",
    )
    tls_certificate: Path | None = Field(None, description="PEM file: the server's certificate and its chain")
    tls_key: Path | None = Field(None, description="PEM file: its private key; none if the certificate's file has it")
    tls_poll_s: Annotated[float, Field(ge=0.0)] = Field(
        10.0, description="seconds between two looks whether the files of TLS have changed; 0: only at a SIGHUP"
    )
    tls_client_ca: Path | None = Field(None, description="PEM file: who signs the certificates of clients")
    tls_client_certificates: Literal["none", "optional", "required"] = Field(
        "none",
        description="certificates of clients: none, optional or required (see certificate_name)",
    )
    tls_crl: Path | None = Field(
        None,
        description="PEM file: a revocation list (CRL) of each CA; clients whose certificates are in them are refused",
    )
    proxy_protocol: bool = Field(
        False, description="every connection begins with a PROXY protocol header (v1 or v2): the client's address"
    )
    proxy_networks: str = Field(
        "127.0.0.0/8,::1",
        description="addresses and networks of the proxies whose header is believed, separated by commas; with "
        "proxy_protocol connections from elsewhere are refused",
    )
    workers: Annotated[int, Field(ge=1, le=256)] = Field(
        1, description="processes that serve the same ports, one event loop each"
    )

    # The server
    redis: str = Field(
        "redis://127.0.0.1:6379/0",
        description="the server: redis://, rediss:// or unix:// URL, or sentinel://host:port,.../service",
    )
    max_outstanding: PositiveInt = Field(
        50_000, description="commands of all clients without a reply; beyond it no client is read"
    )
    max_outstanding_bytes: Annotated[int, Field(ge=65_536, le=MAX_BYTES)] = Field(
        67_108_864, description="the same in bytes"
    )
    read_ahead: PositiveInt = Field(
        256,
        description="commands without a reply beyond which publishers (plain TCP) are read only when the server has "
        "answered, or after 20 ms: clients of a busy server are read less often, in larger chunks",
    )
    max_fetches: PositiveInt = Field(
        64, description="pages of queues (max_ready_bytes each) under way; all pages together have at most 4 MiB"
    )
    server_timeout_s: PositiveFloat = Field(
        30.0, description="seconds of silence after which the connection to the server is given up and made anew"
    )
    retry_first_s: PositiveFloat = Field(0.05, description="first pause before a connection or command is tried again")
    retry_max_s: PositiveFloat = Field(2.0, description="longest such pause")
    retry_total_s: PositiveFloat = Field(
        180.0,
        description="seconds that a client's publish waits for a server that is away or keeps refusing; then "
        "unserved_publisher says what happens",
    )
    wait_replicas: Annotated[int, Field(ge=0, le=1000)] = Field(
        0,
        description="replicas that have to confirm a publish before the client gets its acknowledgement (WAIT, once "
        "per turn); 0: none",
    )
    wait_timeout_s: Annotated[float, Field(ge=0.001, le=10.0)] = Field(
        0.1,
        description="seconds of one WAIT; while replicas are missing the acknowledgements are withheld, and other "
        "commands wait for so long",
    )
    unserved_publisher: Literal["disconnect", "wait"] = Field(
        "disconnect",
        description="a client whose publish has waited for retry_total_s: disconnect it (MQTT 5.0: with a reason "
        "code), or let it wait on",
    )

    # Sessions
    session_expiry_s: Annotated[int, Field(ge=1, le=MAX_EXPIRY_S)] = Field(
        604_800, description="seconds that a persistent session of MQTT 3.1.1 outlives its connection"
    )
    max_session_expiry_s: Annotated[int, Field(ge=0, le=MAX_EXPIRY_S)] = Field(
        604_800, description="longest session expiry interval that a client of MQTT 5.0 gets"
    )
    message_expiry_s: Annotated[int, Field(ge=0, le=MAX_EXPIRY_S)] = Field(
        0, description="seconds that a message without an expiry interval gets, retained ones and wills too; 0: none"
    )
    max_message_expiry_s: Annotated[int, Field(ge=0, le=MAX_EXPIRY_S)] = Field(
        0, description="longest expiry interval of a message, also of one without; 0: no bound"
    )
    lease_s: Annotated[int, Field(ge=2, le=MAX_EXPIRY_S)] = Field(
        10,
        description="seconds after which the sessions of a bridge that vanished are closed and their wills published",
    )
    max_subscriptions: PositiveInt = Field(
        1000,
        description="subscriptions of one client; one counts once for each 8 levels or 256 bytes begun, a shared one "
        "ten times at least",
    )

    session_kind: Literal["device", "application"] = Field(
        "device",
        description="what sessions are: device (messages wait in its queue) or application (it reads history)",
    )

    session_of_another_identity: Literal["refuse", "replace"] = Field(
        "refuse",
        description="a client id whose session belongs to another user: refuse the client, or replace the session by "
        "a new one (its queue is dropped, its connection is closed, its will is published)",
    )

    # Flow
    max_inflight: Annotated[int, Field(ge=1, le=MAX_PACKET_ID)] = Field(
        100, description="messages of QoS 1 and 2 sent to one client and not yet acknowledged"
    )
    receive_maximum: Annotated[int, Field(ge=1, le=MAX_PACKET_ID)] = Field(
        1000, description="messages of QoS 1 and 2 of one MQTT 5.0 client under way to the server"
    )
    max_ready: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1000, description="messages kept ready for one client behind a full window; more stay in its queue"
    )
    max_ready_bytes: Annotated[int, Field(ge=1024, le=16_777_216)] = Field(65_536, description="the same in bytes")
    max_topic_alias: Annotated[int, Field(ge=0, le=MAX_PACKET_ID)] = Field(
        10, description="topic aliases of one connection in each direction; 0: none"
    )
    replay_rate: Annotated[int, Field(ge=0, le=MAX_RATE)] = Field(
        0, description="messages of its backlog a second that a client gets; 0: as fast as it acknowledges"
    )
    publish_rate: Annotated[int, Field(ge=0, le=MAX_RATE)] = Field(
        0, description="messages a second that one client may publish: beyond it is read more slowly; 0: no bound"
    )
    max_client_outstanding: PositiveInt = Field(
        1000, description="commands of one client without a reply; beyond it the client is not read"
    )

    # Clients
    max_connections: PositiveInt = Field(100_000, description="connections held at the same time; more are refused")
    connection_rate: Annotated[int, Field(ge=0, le=MAX_RATE)] = Field(
        2000,
        description="connects a second in this process; more wait for their turn, at most connect_wait_s; 0: no bound",
    )
    connection_rate_per_address: Annotated[int, Field(ge=0, le=MAX_RATE)] = Field(
        0,
        description="connects a second from one address (IPv6: one /64); 0: no bound but that an address that connects "
        "much leaves a quarter of connection_rate to others",
    )
    max_packet_bytes: Annotated[int, Field(ge=64)] = Field(
        1_048_576,
        description="size of one MQTT packet, at most 16777216; a client that sends a larger one is disconnected",
    )
    max_connect_bytes: Annotated[int, Field(ge=64, le=MOST_PACKET_BYTES)] = Field(
        65_536, description="size of a CONNECT, will and password included; a larger one is refused"
    )
    max_unread_connects: Annotated[int, Field(ge=65_536, le=MAX_BYTES)] = Field(
        16_777_216,
        description="bytes of incomplete CONNECTs held for all connections together; beyond them a connection is "
        "refused whose incomplete CONNECT has more than 1 KiB",
    )
    max_filters: Annotated[int, Field(ge=1, le=65_536)] = Field(
        1000, description="topic filters of one SUBSCRIBE or UNSUBSCRIBE; a client that sends more is disconnected"
    )
    max_user_properties: Annotated[int, Field(ge=1, le=65_536)] = Field(
        256, description="user properties of one packet (MQTT 5.0); a client that sends more is disconnected"
    )
    max_user_property_bytes: Annotated[int, Field(ge=64, le=MAX_BYTES)] = Field(
        65_536, description="bytes of the names and values of these"
    )
    max_client_id_bytes: Annotated[int, Field(ge=23, le=MAX_PACKET_ID)] = Field(
        1024, description="length of a client id"
    )
    max_keep_alive_s: Annotated[int, Field(ge=1, le=MAX_PACKET_ID)] = Field(
        600,
        description="longest keep-alive of an MQTT 5.0 client (server keep alive), and idle time of TCP's own probes",
    )
    connect_timeout_s: PositiveFloat = Field(10.0, description="seconds a new connection has for its whole CONNECT")
    connect_wait_s: PositiveFloat = Field(
        45.0,
        description="seconds that a whole CONNECT waits for its answer while the server is away or above "
        "connection_rate; then temporary_refusal says what happens",
    )
    max_unanswered_connects: Annotated[int, Field(ge=65_536, le=MAX_BYTES)] = Field(
        67_108_864,
        description="bytes of whole CONNECTs that wait for their answer, for all connections together; beyond them a "
        "connection is closed whose CONNECT has more than 1 KiB",
    )
    temporary_refusal: Literal["close", "reason_code"] = Field(
        "close",
        description="answer to a CONNECT that could not be served in time (server away, too many connects): close "
        "the connection, after which clients try again, or send a CONNACK with reason_code, which many take as final",
    )
    write_buffer_bytes: Annotated[int, Field(ge=1024, le=MAX_BYTES)] = Field(
        262_144, description="unsent bytes of one client above which nothing more is delivered to it"
    )
    write_timeout_s: PositiveFloat = Field(
        60.0, description="seconds after which a client that reads too slowly is disconnected"
    )

    # Watching
    metrics_host: str = Field("127.0.0.1", description="address for /metrics, /readyz and /livez")
    metrics_port: Port | None = Field(
        None, description="port for /metrics, /readyz and /livez; each worker has its own, counted from this one"
    )
    sys_interval_s: Annotated[float, Field(ge=0.0)] = Field(
        10.0, description="seconds between two publications of $SYS/broker/...; 0: none"
    )
    report_interval_s: Annotated[float, Field(ge=0.0)] = Field(
        5.0, description="seconds between two reports for `holdmq bridges`, `clients`, `top` and `kick`; 0: none"
    )
    log_level: str = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")
    shutdown_timeout_s: PositiveFloat = Field(10.0, description="seconds for finishing what is under way at the end")

    @field_validator("port", "tls_port", "ws_port", "wss_port", "metrics_port", mode="before")
    @classmethod
    def _minus_one_is_off(cls, value: object) -> object:
        return None if value in (-1, "-1", "") else value

    @field_validator("redis")
    @classmethod
    def _redis_is_a_url(cls, value: str) -> str:
        Target.parse(value)
        return value

    @field_validator("max_packet_bytes")
    @classmethod
    def _packet_fits_the_servers_output(cls, value: int) -> int:
        if value > MOST_PACKET_BYTES:
            raise ValueError(
                f"max_packet_bytes {value}: at most {MOST_PACKET_BYTES} expected, because the server closes the "
                "bridge's connection when more is unread (client-output-buffer-limit pubsub)"
            )
        return value

    @field_validator("ws_path")
    @classmethod
    def _path_is_absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError(f"path {value!r}: expected one that begins with /")
        return value

    @field_validator("ws_origins")
    @classmethod
    def _origins_are_origins(cls, value: str) -> str:
        for origin in _listed(value):
            if origin not in (SAME_HOST, ANY_ORIGIN) and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"origin {origin!r}: expected scheme://host[:port], null, {SAME_HOST} or {ANY_ORIGIN}")
        return value

    @property
    def origins(self) -> tuple[str, ...]:
        """Those of ws_origins, as browsers write them."""
        return tuple(_listed(self.ws_origins))

    @field_validator("proxy_networks")
    @classmethod
    def _networks_are_networks(cls, value: str) -> str:
        for network in _listed(value):
            _network(network)
        return value

    @property
    def proxies(self) -> tuple[Network, ...]:
        """Those of proxy_networks."""
        return tuple(map(_network, _listed(self.proxy_networks)))

    @field_validator("log_level")
    @classmethod
    def _log_level_is_known(cls, value: str) -> str:
        level = value.upper()
        if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ValueError(f"log level {value!r}: expected DEBUG, INFO, WARNING or ERROR")
        return level

    @model_validator(mode="after")
    def _listeners_have_what_they_need(self) -> Self:
        if (self.tls_port is not None or self.wss_port is not None) and self.tls_certificate is None:
            raise ValueError("tls_certificate is missing: tls_port and wss_port need one")
        if self.tls_client_certificates != "none" and self.tls_client_ca is None:
            raise ValueError("tls_client_ca is missing: tls_client_certificates needs one")
        if self.tls_client_ca is not None and self.tls_client_certificates == "none":  # nobody would be asked for one
            raise ValueError("tls_client_ca needs tls_client_certificates to be optional or required")
        if self.tls_crl is not None and self.tls_client_certificates == "none":
            raise ValueError("tls_crl needs tls_client_certificates to be optional or required")
        if self.proxy_protocol and (self.tls_port is not None or self.wss_port is not None):
            raise ValueError("proxy_protocol does not go together with tls_port and wss_port: the proxy ends TLS")
        if self.wait_replicas > 0 and self.wait_timeout_s >= self.server_timeout_s:
            raise ValueError(
                f"wait_timeout_s {self.wait_timeout_s:g}: expected less than server_timeout_s "
                f"({self.server_timeout_s:g})"
            )
        if all(port is None for port in (self.port, self.tls_port, self.ws_port, self.wss_port)):
            raise ValueError("no listener: one of port, tls_port, ws_port and wss_port has to be set")
        return self


def _listed(value: str) -> list[str]:
    return [part for part in value.lower().replace(",", " ").split() if part]


def _network(value: str) -> Network:
    try:
        return ipaddress.ip_network(value)
    except ValueError as error:
        raise ValueError(f"network {value!r}: expected an address or a network such as 10.0.0.0/8 ({error})") from error
