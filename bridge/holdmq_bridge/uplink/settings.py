r"""The settings of links, from a configuration file (TOML) or the command line, with their defaults.

    redis = "redis://127.0.0.1:6379/0"

    [[connection]]
    name = "cloud"
    address = "broker.example.com:8883"
    tls = true
    topics = ["sensors/# out 1 \"\" plant-7/", "commands/# in 2 \"\" plant-7/"]

The only table of defaults.  File, options and environment (HOLDMQ_LINK_<NAME>, only for settings of the process) use
it.  The objects are frozen.
"""

import os
import socket
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from holdmq import core
from holdmq_bridge.base.target import Target
from holdmq_bridge.process.settings import MOST_PACKET_BYTES
from holdmq_bridge.uplink.rules import Direction, Rule, Rules

MAX_CONFIG_BYTES = 1_048_576
MAX_LINKS = 100
MAX_PACKET_ID = 65535
MAX_EXPIRY_S = 4_294_967_295
MAX_MQTT_PACKET_BYTES = 268_435_460
_PORT, _TLS_PORT = 1883, 8883
_NAME_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"


class ConnectionSettings(BaseModel):
    """One link.  The fields' descriptions are the help texts of the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=_NAME_PATTERN)] = Field(
        description="Name of the link. It must never change, because the link's session at HoldMQ is link:<name>."
    )
    address: str = Field(description="The other broker: host, host:port, [IPv6]:port, or the path of a Unix socket.")
    topics: tuple[Rule, ...] = Field(
        description="Topics that the link carries: <pattern> [in|out|both [<qos> [<local prefix> [<remote "
        "prefix>]]]]. May be repeated."
    )
    protocol: Literal["5.0", "3.1.1"] = Field("5.0", description="Version of MQTT: 5.0 or 3.1.1.")
    transport: Literal["tcp", "websockets"] = Field("tcp", description="Transport: tcp or websockets.")
    ws_path: str = Field("/mqtt", description="Path of the WebSocket.")
    client_id: str = Field(
        "", description="Client id at the other broker. Not set: <host name>.<name>. Set it where host names change."
    )
    username: str | None = Field(None, description="Username at the other broker.")
    password: SecretStr | None = Field(None, description="Password at the other broker. Prefer password_file.")
    password_file: Path | None = Field(None, description="File whose first line is the password.")
    tls: bool = Field(False, description="Use TLS. The port is then 8883 unless the address names one.")
    tls_ca: Path | None = Field(
        None, description="PEM file with the CAs that sign the broker's certificate. Not set: those of the system."
    )
    tls_certificate: Path | None = Field(None, description="PEM file with the link's own certificate.")
    tls_key: Path | None = Field(
        None, description="PEM file with the private key. Not needed if the file of the certificate contains it."
    )
    tls_insecure: bool = Field(False, description="Accept a certificate for another host name. For tests only.")
    keepalive_s: Annotated[int, Field(ge=5, le=65535)] = Field(
        60, description="Time without a packet after which the link sends a PINGREQ to the other broker."
    )
    clean_session: bool = Field(
        False,
        description="Keep nothing while either side is away. Otherwise all messages of QoS 1 and 2 wait on both sides.",
    )
    session_expiry_s: Annotated[int, Field(ge=1, le=MAX_EXPIRY_S)] = Field(
        604_800,
        description="How long the sessions on both sides outlive the link (at the other broker with MQTT 5.0 only).",
    )
    try_private: bool = Field(
        True,
        description="With MQTT 3.1.1, ask to be treated as a bridge, as Mosquitto does: no local, retain flags kept.",
    )
    notifications: bool = Field(True, description="Publish the state of the link on both sides: 1 or 0, retained.")
    notifications_local_only: bool = Field(False, description="Publish the state of the link at HoldMQ only.")
    notification_topic: str = Field(
        "",
        description="Topic for the state of the link. Not set: $SYS/broker/connection/<name>/state at HoldMQ, "
        ".../<client id>/state at the other broker.",
    )
    max_inflight: Annotated[int, Field(ge=1, le=10_000)] = Field(
        100, description="Maximum number of messages of QoS 1 and 2 sent to the other broker and not yet acknowledged."
    )
    receive_maximum: Annotated[int, Field(ge=1, le=MAX_PACKET_ID)] = Field(
        1000,
        description="Maximum number of messages of QoS 1 and 2 that the other broker may send before the link "
        "acknowledges "
        "them (MQTT 5.0).",
    )
    max_packet_bytes: Annotated[int, Field(ge=1024, le=MOST_PACKET_BYTES)] = Field(
        MOST_PACKET_BYTES, description="Largest packet that the other broker may send (MQTT 5.0)."
    )
    max_pending: Annotated[int, Field(ge=1, le=100_000)] = Field(
        2000,
        description="Maximum number of packets from the other broker that the server has not answered. At the limit "
        "nothing is "
        "read.",
    )
    max_pending_bytes: Annotated[int, Field(ge=65_536, le=1_073_741_824)] = Field(
        8_388_608,
        description="Maximum bytes of packets from the other broker that the server has not answered, and of packets "
        "that wait to be written to the other broker.",
    )
    max_hops: Annotated[int, Field(ge=1, le=64)] = Field(
        8, description="Most HoldMQ brokers that a message may pass over links (MQTT 5.0)."
    )
    lease_s: Annotated[int, Field(ge=2, le=3600)] = Field(
        15, description="How long a link may be silent before HoldMQ declares it gone."
    )
    connect_timeout_s: PositiveFloat = Field(
        10.0, description="Time to connect to the other broker and to get its CONNACK."
    )
    retry_first_s: PositiveFloat = Field(0.2, description="First pause before the next attempt to connect.")
    retry_max_s: PositiveFloat = Field(30.0, description="Longest pause before the next attempt to connect.")

    @field_validator("topics", mode="before")
    @classmethod
    def _topics_are_lines(cls, value: object) -> object:
        if isinstance(value, (str, bytes)) or not isinstance(value, (list, tuple)):
            raise ValueError("expected a list of topic lines")  # noqa: TRY004 - what pydantic understands
        return tuple(_rule(line) for line in value)

    @field_validator("notification_topic")
    @classmethod
    def _notification_topic_is_a_name(cls, value: str) -> str:
        if value:
            core.check_topic_name(value)
        return value

    @field_validator("client_id")
    @classmethod
    def _client_id_is_not_too_long(cls, value: str) -> str:
        if len(value.encode()) > MAX_PACKET_ID:
            raise ValueError("longer than 65535 bytes")
        return value

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        Rules(self.topics)
        self.host_and_port()
        if not self.tls and (self.tls_ca or self.tls_certificate or self.tls_insecure):
            raise ValueError("tls_ca, tls_certificate and tls_insecure need tls")
        if self.tls_key is not None and self.tls_certificate is None:
            raise ValueError("tls_key needs tls_certificate")
        if self.password is not None and self.password_file is not None:
            raise ValueError("password and password_file; expected one of them")
        if self.username is None and (self.password is not None or self.password_file is not None):
            raise ValueError("username is missing: a password is given")
        if self.retry_max_s < self.retry_first_s:
            raise ValueError("retry_max_s is less than retry_first_s")
        return self

    @property
    def unix(self) -> bool:
        """Is the address the path of a Unix socket?"""
        return self.address.startswith("/")

    def host_and_port(self) -> tuple[str, int]:
        """Where to connect to.  Raises ValueError."""
        default = _TLS_PORT if self.tls else _PORT
        if self.unix:
            return self.address, default
        host, colon, port = self.address.rpartition(":")
        if not colon or self.address.endswith("]") or (":" in host and not host.endswith("]")):
            host, port = self.address, str(default)
        if not host.strip("[]") or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise ValueError(f"address {self.address!r}; expected host, host:port or a path")
        return host.strip("[]"), int(port)

    def remote_client_id(self) -> str:
        """The client id at the other broker."""
        return self.client_id or f"{socket.gethostname()}.{self.name}"

    def secret(self) -> str | None:
        """The password.  Raises OSError if its file cannot be read."""
        if self.password_file is not None:
            return self.password_file.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        return None if self.password is None else self.password.get_secret_value()


class ProcessSettings(BaseSettings):
    """A process with its links."""

    model_config = SettingsConfigDict(env_prefix="HOLDMQ_LINK_", frozen=True, extra="forbid")

    redis: str = Field(
        "redis://127.0.0.1:6379/0",
        description="URL of the server: redis://, rediss://, unix://, or sentinel://host:port,.../service.",
    )
    broker_id: str = Field(
        "", description="Id of this broker in the path of a message. Not set: an id is made up and kept in the server."
    )
    metrics_host: str = Field("127.0.0.1", description="Address for /metrics.")
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(None, description="Port for /metrics.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="Lowest level that is logged: DEBUG, INFO, WARNING or ERROR."
    )
    connection: tuple[ConnectionSettings, ...]

    @field_validator("redis")
    @classmethod
    def _redis_is_a_url(cls, value: str) -> str:
        Target.parse(value)
        return value

    @field_validator("broker_id")
    @classmethod
    def _broker_id_is_a_word(cls, value: str) -> str:
        if value and (len(value) > 64 or not value.isprintable() or " " in value):
            raise ValueError("expected at most 64 printable characters without a space")
        return value

    @field_validator("connection")  # a length of the field itself would count a faulty link as missing, a second error
    @classmethod
    def _links_are_neither_none_nor_too_many(
        cls, value: tuple[ConnectionSettings, ...]
    ) -> tuple[ConnectionSettings, ...]:
        if not 1 <= len(value) <= MAX_LINKS:
            raise ValueError(f"{len(value)} links; expected 1 to {MAX_LINKS}")
        return value

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [link.name for link in self.connection]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"name {twice[0]!r} is given to several links; expected a different one for each")
        return self


def _rule(line: object) -> Rule:
    if isinstance(line, Rule):
        return line
    if isinstance(line, str):
        return Rule.parse(line)
    if not isinstance(line, dict) or "pattern" not in line:
        raise ValueError(f"topic {line!r}; expected a line, or a table with pattern, direction, qos and prefixes")
    known = {"pattern": str, "direction": str, "qos": int, "local_prefix": str, "remote_prefix": str}
    for name, value in line.items():
        if not isinstance(value, known.get(name, ())):
            raise ValueError(  # noqa: TRY004 - what pydantic understands
                f"topic {line!r}: {name} = {value!r}; expected {', '.join(known)}"
            )
    if line.get("direction", "out") not in tuple(Direction):
        raise ValueError(f"topic {line!r}: direction {line['direction']!r}; expected in, out or both")
    return Rule(**{**line, "direction": Direction(line.get("direction", "out"))})


def read_file(path: Path) -> dict[str, Any]:
    """Reads settings from a TOML file, without checking them.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too large, or not TOML.
    """
    with path.open("rb") as opened:
        if os.fstat(opened.fileno()).st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"{path}: larger than {MAX_CONFIG_BYTES} bytes")
        try:
            return tomllib.load(opened)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: {error}") from error
