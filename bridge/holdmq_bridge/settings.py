"""Every limit and address of the bridge, with its default, its unit and where it can be set.

One table: the command line, the environment (prefix HOLDMQ_BRIDGE_, e.g. HOLDMQ_BRIDGE_MAX_INFLIGHT) and the tests read
it, nothing else holds a default.  The object is frozen: what runs does not change under anybody's feet.
"""

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from holdmq_bridge.target import Target

MAX_MQTT_PACKET_BYTES = 268_435_460  # a five-byte fixed header and the largest remaining length [MQTT-2.2.3]
MAX_PACKET_ID = 65535
MAX_EXPIRY_S = 4_294_967_295

Port = Annotated[int, Field(ge=0, le=65535)]


class Settings(BaseSettings):
    """Addresses and limits of one bridge process.  The fields' descriptions are the help texts of the command line."""

    model_config = SettingsConfigDict(env_prefix="HOLDMQ_BRIDGE_", frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(1883, description="port to listen on; 0 takes a free one")
    redis: str = Field("redis://127.0.0.1:6379/0", description="the server: redis://, rediss:// or unix:// URL")

    # Sessions
    session_expiry_s: Annotated[int, Field(ge=1, le=MAX_EXPIRY_S)] = Field(
        604_800, description="seconds that a persistent session outlives its connection"
    )
    lease_s: Annotated[int, Field(ge=2, le=MAX_EXPIRY_S)] = Field(
        3600, description="seconds that a session outlives a bridge that vanished without closing it"
    )
    max_inflight: Annotated[int, Field(ge=1, le=MAX_PACKET_ID)] = Field(
        100, description="messages of QoS 1 sent to one client and not yet acknowledged"
    )

    max_ready: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1000, description="messages kept ready for one client behind a full window; more stay in its queue"
    )
    max_ready_bytes: Annotated[int, Field(ge=1024, le=16_777_216)] = Field(65_536, description="the same in bytes")

    # Clients
    max_connections: PositiveInt = Field(100_000, description="connections held at the same time; more are refused")
    max_packet_bytes: Annotated[int, Field(ge=64, le=MAX_MQTT_PACKET_BYTES)] = Field(
        1_048_576, description="size of one MQTT packet; a client that sends a larger one is disconnected"
    )
    max_client_id_bytes: Annotated[int, Field(ge=23, le=MAX_PACKET_ID)] = Field(
        1024, description="length of a client id"
    )
    connect_timeout_s: PositiveFloat = Field(
        10.0, description="seconds a new connection has for its CONNECT, and the server for answering it"
    )
    write_buffer_bytes: Annotated[int, Field(ge=1024)] = Field(
        262_144, description="unsent bytes of one client above which nothing more is delivered to it"
    )
    write_timeout_s: PositiveFloat = Field(
        60.0, description="seconds after which a client that reads too slowly is disconnected"
    )
    max_client_outstanding: PositiveInt = Field(
        1000, description="commands of one client without a reply; beyond it the client is not read"
    )

    # The server
    max_outstanding: PositiveInt = Field(
        50_000, description="commands of all clients without a reply; beyond it no client is read"
    )
    max_outstanding_bytes: Annotated[int, Field(ge=65_536)] = Field(67_108_864, description="the same in bytes")
    batch_bytes: Annotated[int, Field(ge=1024)] = Field(
        65_536, description="commands are written once per loop iteration, or when they are this large"
    )
    max_fetches: PositiveInt = Field(
        64, description="pages of queues (max_ready_bytes each) under way; together below the output-buffer limit"
    )
    server_timeout_s: PositiveFloat = Field(
        30.0, description="seconds of silence after which the connection to the server is given up and made anew"
    )
    retry_first_s: PositiveFloat = Field(0.05, description="first pause before a connection or command is tried again")
    retry_max_s: PositiveFloat = Field(2.0, description="longest such pause")
    retry_total_s: PositiveFloat = Field(
        60.0, description="seconds after which a client whose publish the server keeps refusing is disconnected"
    )

    # The process
    shutdown_timeout_s: PositiveFloat = Field(10.0, description="seconds for finishing what is under way at the end")
    log_level: str = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")

    @field_validator("redis")
    @classmethod
    def _redis_is_a_url(cls, value: str) -> str:
        Target.parse(value)
        return value

    @field_validator("log_level")
    @classmethod
    def _log_level_is_known(cls, value: str) -> str:
        level = value.upper()
        if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ValueError(f"log level {value!r}: expected DEBUG, INFO, WARNING or ERROR")
        return level
