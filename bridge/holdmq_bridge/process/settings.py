"""Every limit and address of the bridge, with its default and unit.

The only table of defaults.  The command line, the environment (prefix HOLDMQ_BRIDGE_, as in HOLDMQ_BRIDGE_MAX_INFLIGHT)
and the tests use it.  The object is frozen: settings do not change while a process runs.
"""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from holdmq_bridge.auth import AuthSettings
from holdmq_bridge.base.target import Target

# The bridge gets a message in one reply.  Together with messages that are pushed in the meantime, it must stay below
# the server's bound on unread output of a client (client-output-buffer-limit pubsub 32mb).
MOST_PACKET_BYTES = 16_777_216
MAX_PACKET_ID = 65535
MAX_EXPIRY_S = 4_294_967_295
MAX_RATE = 1_000_000
MAX_BYTES = 2_147_483_647
MAX_TRACE_RATE = 200

SAME_HOST, ANY_ORIGIN = "same-host", "*"  # words in ws_origins

Port = Annotated[int, Field(ge=0, le=65535)]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+|null")


class Settings(AuthSettings, BaseSettings):
    """Addresses and limits of one bridge process.  The fields' descriptions are the help texts of the command line."""

    model_config = SettingsConfigDict(env_prefix="HOLDMQ_BRIDGE_", frozen=True, extra="forbid")

    # Listeners
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port | None = Field(1883, description="Port for MQTT. 0 takes a free port, -1 turns the listener off.")
    tls_port: Port | None = Field(None, description="Port for MQTT over TLS.")
    ws_port: Port | None = Field(None, description="Port for MQTT over WebSocket.")
    wss_port: Port | None = Field(None, description="Port for MQTT over WebSocket over TLS.")
    ws_path: str = Field("/mqtt", description="Path of the WebSocket. A request for another path gets status 404.")
    ws_max_frame_bytes: Annotated[int, Field(ge=125)] = Field(
        1_048_576,
        description="Largest WebSocket message. A larger one ends the connection with close code 1009. An MQTT "
        "packet may span several messages.",
    )
    ws_origins: str = Field(
        SAME_HOST,
        description="Web pages that may connect by WebSocket: origins such as https://app.example.com, separated "
        "by commas. same-host allows pages of the host that they connect to, * allows every page. A page of another "
        "origin gets status 403. Clients that are not web pages send no origin and are not checked.",
    )
    tls_certificate: Path | None = Field(None, description="PEM file with the bridge's certificate and its chain.")
    tls_key: Path | None = Field(
        None, description="PEM file with the private key. Not needed if the file of the certificate contains it."
    )
    tls_poll_s: Annotated[float, Field(ge=0.0)] = Field(
        10.0,
        description="Interval between two checks for changed TLS files. 0: the files are read again only on SIGHUP.",
    )
    tls_client_ca: Path | None = Field(None, description="PEM file with the CAs that sign the certificates of clients.")
    tls_client_certificates: Literal["none", "optional", "required"] = Field(
        "none",
        description="Whether clients are asked for a certificate: none, optional or required. certificate_name "
        "says which user a certificate stands for.",
    )
    tls_crl: Path | None = Field(
        None,
        description="PEM file with a revocation list (CRL) of each CA. A client with a revoked certificate is "
        "refused during the TLS handshake.",
    )
    proxy_protocol: bool = Field(
        False,
        description="Expect a PROXY protocol header (version 1 or 2) with the client's address at the start of "
        "every connection.",
    )
    proxy_networks: str = Field(
        "127.0.0.0/8,::1",
        description="Addresses and networks of trusted proxies, separated by commas. With proxy_protocol, "
        "connections from other addresses are closed.",
    )
    workers: Annotated[int, Field(ge=1, le=256)] = Field(
        1, description="Number of processes that serve the same ports, each with an event loop of its own."
    )

    # The server
    redis: str = Field(
        "redis://127.0.0.1:6379/0",
        description="URL of the server: redis://, rediss://, unix://, or sentinel://host:port,.../service.",
    )
    max_outstanding: PositiveInt = Field(
        50_000,
        description="Maximum number of commands to the server without a reply, for all clients together. At the limit "
        "no "
        "client is read.",
    )
    max_outstanding_bytes: Annotated[int, Field(ge=65_536, le=MAX_BYTES)] = Field(
        67_108_864,
        description="Maximum bytes of commands to the server without a reply, for all clients together. At the limit "
        "no client is read.",
    )
    read_ahead: PositiveInt = Field(
        256,
        description="Commands without a reply above which publishers without TLS are read only after a reply, or "
        "after 20 ms. Clients of a busy server are then read less often, in larger chunks.",
    )
    max_fetches: PositiveInt = Field(
        64,
        description="Maximum number of pages of queues being fetched from the server, each of max_ready_bytes. All of "
        "these pages together have at most 1 MiB. A message larger than a page is fetched alone, beside them.",
    )
    server_timeout_s: PositiveFloat = Field(
        30.0, description="Time without any reply after which the connection to the server is closed and opened again."
    )
    retry_first_s: PositiveFloat = Field(
        0.05, description="First pause before a failed connection or command is retried."
    )
    retry_max_s: PositiveFloat = Field(2.0, description="Longest pause between two retries.")
    retry_total_s: PositiveFloat = Field(
        180.0,
        description="How long a publish waits while the server is away or keeps refusing it. Then "
        "unserved_publisher applies.",
    )
    wait_replicas: Annotated[int, Field(ge=0, le=1000)] = Field(
        0,
        description="Replicas that must confirm a publish (WAIT, once per turn) before the client gets its "
        "acknowledgement. 0: none.",
    )
    wait_timeout_s: Annotated[float, Field(ge=0.001, le=10.0)] = Field(
        0.1,
        description="Timeout of one WAIT. While replicas are missing, acknowledgements are withheld and other "
        "commands wait up to this long.",
    )
    unserved_publisher: Literal["disconnect", "wait"] = Field(
        "disconnect",
        description="What happens to a client whose publish has waited for retry_total_s: disconnect it (0x89), "
        "or let it wait. An MQTT 5.0 publish that the server keeps refusing gets a PUBACK with 0x80 instead of a "
        "disconnect.",
    )

    # Sessions
    session_expiry_s: Annotated[int, Field(ge=1, le=MAX_EXPIRY_S)] = Field(
        604_800, description="How long a persistent session of MQTT 3.1.1 outlives its connection."
    )
    max_session_expiry_s: Annotated[int, Field(ge=0, le=MAX_EXPIRY_S)] = Field(
        604_800,
        description="Longest session expiry interval of an MQTT 5.0 client. A client that asks for more is told "
        "the granted interval in the CONNACK.",
    )
    message_expiry_s: Annotated[int, Field(ge=0, le=MAX_EXPIRY_S)] = Field(
        0,
        description="Expiry interval for messages without one, retained messages and wills included. 0: they get none.",
    )
    max_message_expiry_s: Annotated[int, Field(ge=0, le=MAX_EXPIRY_S)] = Field(
        0, description="Longest expiry interval of a message, which also applies to messages without one. 0: no limit."
    )
    lease_s: Annotated[int, Field(ge=2, le=MAX_EXPIRY_S)] = Field(
        10,
        description="How long a bridge may be silent before the server closes its sessions and publishes their wills.",
    )
    max_subscriptions: PositiveInt = Field(
        1000,
        description="Maximum number of subscriptions of one client. A filter counts once for each 8 levels or 256 "
        "bytes begun, "
        "and a shared one at least ten times. A further filter is refused (0x97, MQTT 3.1.1: 0x80).",
    )

    session_kind: Literal["device", "application"] = Field(
        "device",
        description="Kind of the sessions: device (messages wait in the session's queue) or application (the "
        "session reads history).",
    )

    session_of_another_identity: Literal["refuse", "replace"] = Field(
        "refuse",
        description="What happens when a client id belongs to the session of another user: refuse the client "
        "(0x87), or replace the session. Replacing drops the queue, closes the connection and publishes the will of "
        "the former session.",
    )

    # Flow
    max_inflight: Annotated[int, Field(ge=1, le=MAX_PACKET_ID)] = Field(
        100,
        description="Maximum number of messages of QoS 1 and 2 sent to one client and not yet acknowledged. Further "
        "messages "
        "wait in its queue.",
    )
    receive_maximum: Annotated[int, Field(ge=1, le=MAX_PACKET_ID)] = Field(
        1000,
        description="Maximum number of messages of QoS 1 and 2 that an MQTT 5.0 client may publish before they are "
        "acknowledged. A client that sends more is disconnected (0x93).",
    )
    max_ready: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1000,
        description="Maximum number of messages kept in the bridge for a client whose window is full. Further "
        "messages stay in "
        "its queue at the server.",
    )
    max_ready_bytes: Annotated[int, Field(ge=1024, le=16_777_216)] = Field(
        65_536, description="Maximum bytes of messages kept in the bridge for a client whose window is full."
    )
    max_topic_alias: Annotated[int, Field(ge=0, le=MAX_PACKET_ID)] = Field(
        10,
        description="Topic aliases of one connection in each direction (MQTT 5.0). A client that uses a higher "
        "alias is disconnected (0x94). 0: none.",
    )
    replay_rate: Annotated[int, Field(ge=0, le=MAX_RATE)] = Field(
        0,
        description="Maximum messages per second of its backlog that one client gets. 0: as fast as the client "
        "acknowledges them.",
    )
    publish_rate: Annotated[int, Field(ge=0, le=MAX_RATE)] = Field(
        0,
        description="Maximum messages per second that one client may publish. A faster client is read more slowly. "
        "0: no limit.",
    )
    max_client_outstanding: PositiveInt = Field(
        1000,
        description="Maximum number of commands of one client without a reply from the server. At the limit the "
        "client is not read.",
    )

    max_client_outstanding_bytes: Annotated[int, Field(ge=16_384, le=MAX_BYTES)] = Field(
        262_144,
        description="Maximum bytes of such commands. A larger message is sent on its own.",
    )

    # Clients
    max_connections: PositiveInt = Field(
        100_000, description="Maximum number of connections of one process. Further connections are closed at once."
    )
    connection_rate: Annotated[int, Field(ge=0, le=MAX_RATE)] = Field(
        2000,
        description="Most CONNECTs per second in one process. Further ones wait for their turn, at most "
        "connect_wait_s. 0: no limit.",
    )
    connection_rate_per_address: Annotated[int, Field(ge=0, le=MAX_RATE)] = Field(
        0,
        description="Most CONNECTs per second from one address (IPv6: one /64). 0: no limit, but an address with "
        "many CONNECTs leaves a quarter of connection_rate to others.",
    )
    max_packet_bytes: Annotated[int, Field(ge=64)] = Field(
        1_048_576,
        description="Largest MQTT packet, at most 16777216. A client that sends a larger one is disconnected (0x95).",
    )
    max_connect_bytes: Annotated[int, Field(ge=64, le=MOST_PACKET_BYTES)] = Field(
        65_536, description="Largest CONNECT, will and password included. A larger one is refused (0x95)."
    )
    max_unread_connects: Annotated[int, Field(ge=65_536, le=MAX_BYTES)] = Field(
        16_777_216,
        description="Maximum bytes of incomplete CONNECTs, for all connections together. At the limit a connection "
        "is refused if its incomplete CONNECT has more than 1 KiB.",
    )
    max_filters: Annotated[int, Field(ge=1, le=65_536)] = Field(
        1000,
        description="Maximum number of topic filters of one SUBSCRIBE or UNSUBSCRIBE. A client that sends more is "
        "disconnected "
        "(0x97).",
    )
    max_user_properties: Annotated[int, Field(ge=1, le=65_536)] = Field(
        256,
        description="Maximum number of user properties of one packet (MQTT 5.0). A client that sends more is "
        "disconnected (0x97).",
    )
    max_user_property_bytes: Annotated[int, Field(ge=64, le=MAX_BYTES)] = Field(
        65_536,
        description="Maximum bytes of the names and values of the user properties of one packet. A client that sends "
        "more is disconnected (0x97).",
    )
    max_client_id_bytes: Annotated[int, Field(ge=23, le=MAX_PACKET_ID)] = Field(
        1024, description="Longest client id. A client with a longer one is refused (0x85)."
    )
    max_keep_alive_s: Annotated[int, Field(ge=1, le=MAX_PACKET_ID)] = Field(
        600,
        description="Longest keep-alive of an MQTT 5.0 client. A client that asks for more, or for none, is told "
        "this value. Also the idle time before TCP's own probes.",
    )
    connect_timeout_s: PositiveFloat = Field(
        10.0, description="Time that a new connection has to send its whole CONNECT. Then it is closed."
    )
    connect_wait_s: PositiveFloat = Field(
        45.0,
        description="How long a whole CONNECT waits while the server is away or connection_rate is exceeded. Then "
        "temporary_refusal applies.",
    )
    max_unanswered_connects: Annotated[int, Field(ge=65_536, le=MAX_BYTES)] = Field(
        67_108_864,
        description="Maximum bytes of whole CONNECTs that wait for an answer, for all connections together. At the "
        "limit a connection is refused if its CONNECT has more than 1 KiB.",
    )
    temporary_refusal: Literal["close", "reason_code"] = Field(
        "close",
        description="Answer to a CONNECT that temporarily cannot be served (server away, too many CONNECTs): close "
        "the connection, or send the reason_code in a CONNACK. Clients retry after a close; many take a reason code "
        "as final.",
    )
    write_buffer_bytes: Annotated[int, Field(ge=1024, le=MAX_BYTES)] = Field(
        262_144,
        description="Unsent bytes of one client above which nothing more is delivered to it. Its messages of QoS "
        "0 are then dropped.",
    )
    write_timeout_s: PositiveFloat = Field(
        60.0, description="How long a client may leave its full buffer unread. Then it is disconnected."
    )

    # Watching
    metrics_host: str = Field("127.0.0.1", description="Address for /metrics, /readyz and /livez.")
    metrics_port: Port | None = Field(
        None,
        description="Port for /metrics, /readyz and /livez. Each worker has a port of its own, counted from this one.",
    )
    sys_interval_s: Annotated[float, Field(ge=0.0)] = Field(
        10.0, description="Interval between two publications of the $SYS/broker topics. 0: none."
    )
    report_interval_s: Annotated[float, Field(ge=0.0)] = Field(
        5.0, description="Interval between two reports for `holdmq bridges`, `clients`, `top` and `kick`. 0: none."
    )
    trace_sample: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.0,
        description="Share of publishes that become OpenTelemetry traces, from 0 to 1. 0 turns tracing off. Above 0, "
        "a publish with a sampled traceparent is always traced. Needs the extra otel.",
    )
    trace_rate: Annotated[int, Field(ge=1, le=MAX_TRACE_RATE)] = Field(
        20,
        description="Maximum traces per second of one process: for publishes chosen by trace_sample, for publishes "
        "whose clients ask for a trace, and for deliveries, each counted separately.",
    )
    trace_endpoint: str = Field(
        "",
        description="URL of the collector that gets the spans by OTLP over HTTP, without /v1/traces. Empty: "
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT, or http://localhost:4318.",
    )
    trace_add_context: bool = Field(
        False,
        description="Give each traced publish the bridge's own span as its user property traceparent, in place of the "
        "publisher's. Subscribers then see another user property than the publisher sent.",
    )
    log_level: str = Field("INFO", description="Lowest level that is logged: DEBUG, INFO, WARNING or ERROR.")
    shutdown_timeout_s: PositiveFloat = Field(10.0, description="Time to finish pending work when the bridge stops.")

    drain_rate: Annotated[int, Field(ge=1, le=MAX_RATE)] = Field(
        500, description="Clients per second that a drain disconnects."
    )
    drain_reason: Literal["use-another-server", "server-moved"] = Field(
        "use-another-server",
        description="Reason that a drain gives MQTT 5.0 clients: use-another-server (0x9C, temporarily) or "
        "server-moved (0x9D, permanently).",
    )
    drain_server_reference: Annotated[str, Field(max_length=1000)] = Field(
        "", description="Server reference that a drain gives MQTT 5.0 clients, such as other.example.com:1883."
    )

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
                f"max_packet_bytes {value}; expected at most {MOST_PACKET_BYTES}, because the server closes the "
                "bridge's connection when more is unread (client-output-buffer-limit pubsub)"
            )
        return value

    @field_validator("ws_path")
    @classmethod
    def _path_is_absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError(f"path {value!r}; expected one that begins with /")
        return value

    @field_validator("ws_origins")
    @classmethod
    def _origins_are_origins(cls, value: str) -> str:
        for origin in _listed(value):
            if origin not in (SAME_HOST, ANY_ORIGIN) and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"origin {origin!r}; expected scheme://host[:port], null, {SAME_HOST} or {ANY_ORIGIN}")
        return value

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins of ws_origins, as browsers write them."""
        return tuple(_listed(self.ws_origins))

    @field_validator("proxy_networks")
    @classmethod
    def _networks_are_networks(cls, value: str) -> str:
        for network in _listed(value):
            _network(network)
        return value

    @property
    def proxies(self) -> tuple[Network, ...]:
        """The networks of proxy_networks."""
        return tuple(map(_network, _listed(self.proxy_networks)))

    @field_validator("trace_endpoint")
    @classmethod
    def _trace_endpoint_is_a_url(cls, value: str) -> str:
        if value:
            check_collector(value)
        return value

    @field_validator("log_level")
    @classmethod
    def _log_level_is_known(cls, value: str) -> str:
        level = value.upper()
        if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ValueError(f"log level {value!r}; expected DEBUG, INFO, WARNING or ERROR")
        return level

    @model_validator(mode="after")
    def _listeners_have_what_they_need(self) -> Self:
        if (self.tls_port is not None or self.wss_port is not None) and self.tls_certificate is None:
            raise ValueError("tls_certificate is missing: tls_port and wss_port need one")
        if self.tls_client_certificates != "none" and self.tls_client_ca is None:
            raise ValueError("tls_client_ca is missing: tls_client_certificates needs one")
        if self.tls_client_ca is not None and self.tls_client_certificates == "none":  # none would be asked for
            raise ValueError("tls_client_ca needs tls_client_certificates to be optional or required")
        if self.tls_crl is not None and self.tls_client_certificates == "none":
            raise ValueError("tls_crl needs tls_client_certificates to be optional or required")
        if self.proxy_protocol and (self.tls_port is not None or self.wss_port is not None):
            raise ValueError("proxy_protocol does not go together with tls_port and wss_port: the proxy ends TLS")
        if self.wait_replicas > 0 and self.wait_timeout_s >= self.server_timeout_s:
            raise ValueError(
                f"wait_timeout_s {self.wait_timeout_s:g}; expected less than server_timeout_s "
                f"({self.server_timeout_s:g})"
            )
        if all(port is None for port in (self.port, self.tls_port, self.ws_port, self.wss_port)):
            raise ValueError("no listener: one of port, tls_port, ws_port and wss_port has to be set")
        return self


def check_collector(url: str) -> None:
    """Raises ValueError unless the URL may be that of a collector."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ValueError(f"collector {url!r}; expected http://host:port or https://host:port")


def _listed(value: str) -> list[str]:
    return [part for part in value.lower().replace(",", " ").split() if part]


def _network(value: str) -> Network:
    try:
        return ipaddress.ip_network(value)
    except ValueError as error:
        raise ValueError(f"network {value!r}; expected an address or a network such as 10.0.0.0/8 ({error})") from error
