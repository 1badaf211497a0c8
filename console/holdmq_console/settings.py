"""Every address and limit of the console, with its default and unit. `holdmq console` has an option for each."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "HOLDMQ_CONSOLE_"
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


class ConsoleSettings(BaseSettings):
    """The settings of one console process. The descriptions are the help texts of the command line."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="Address to listen on. Beyond loopback, users must exist.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8080, description="Port to listen on. 0 takes a free port.")
    tls_certificate: Path | None = Field(None, description="PEM file with the certificate and its chain, for HTTPS.")
    tls_key: Path | None = Field(
        None, description="PEM file with the private key. Not needed if the file of the certificate contains it."
    )
    allowed_hosts: str = Field(
        "",
        description="Host names under which browsers reach the console, separated by commas. Empty: on loopback, "
        "localhost and the loopback addresses; elsewhere any name.",
    )
    trusted_proxies: str = Field(
        "",
        description="Addresses or networks of reverse proxies, separated by commas. Their X-Forwarded-For and "
        "X-Forwarded-Proto are trusted. With a proxy, users must exist.",
    )
    admin_role: str = Field("admin", description="Role of users who may change things.")
    viewer_role: str = Field("viewer", description="Role of users who may view everything except payloads.")
    payload_role: str = Field("payloads", description="Role of users who may read payloads, besides one of the others.")
    session_hours: Annotated[float, Field(gt=0, le=8760)] = Field(12.0, description="How long a login lasts.")
    login_free_failures: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        5, description="Wrong passwords of a user from one address without a pause. Each further one doubles the pause."
    )
    login_ban_max_s: Annotated[float, Field(gt=0, le=86_400)] = Field(
        300.0, description="Longest pause after wrong passwords."
    )
    login_address_failures: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        50, description="Wrong passwords from one address, for all users together. One is forgiven every 10 s."
    )
    audit_entries: Annotated[int, Field(ge=1, le=1_000_000_000)] = Field(
        10_000, description="How many changes the audit stream keeps, at least."
    )
    sample_interval_s: Annotated[float, Field(ge=0.1, le=3600)] = Field(
        2.0, description="Interval between two points of the curves."
    )
    request_timeout_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        20.0, description="How long a client may take to send a request, and may leave an answer unread."
    )
    max_connections: Annotated[int, Field(ge=2, le=100_000)] = Field(
        500, description="Most HTTP connections at the same time. One address has half of them at most."
    )
    live_views: Annotated[int, Field(ge=1, le=1000)] = Field(
        16, description="Maximum number of live views of a filter at the same time. A user has half of them at most."
    )
    live_rate: Annotated[int, Field(ge=1, le=100_000)] = Field(
        20, description="Maximum messages per second that a live view shows."
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _proxies_are_networks(cls, value: str) -> str:
        for one in _listed(value):
            try:
                ipaddress.ip_network(one)
            except ValueError as error:
                raise ValueError(f"{one!r}; expected an address or a network such as 10.0.0.0/8 ({error})") from error
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts_are_names(cls, value: str) -> str:
        for one in _listed(value):
            if not _HOST.fullmatch(one) and not _is_address(one):
                raise ValueError(f"{one!r}; expected a host name or an address, without scheme and port")
        return value

    @model_validator(mode="after")
    def _a_key_has_a_certificate(self) -> "ConsoleSettings":
        if self.tls_key is not None and self.tls_certificate is None:
            raise ValueError("tls_key is set; expected tls_certificate, too")
        return self

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the console, as far as the settings say."""
        return is_loopback(self.host) and not self.proxies and all(map(is_loopback, _listed(self.allowed_hosts)))

    @property
    def proxies(self) -> list[str]:
        """The proxies whose headers are trusted."""
        return _listed(self.trusted_proxies)

    @property
    def hosts(self) -> frozenset[str]:
        """The host names that requests may name; empty: any."""
        local = {"localhost", "127.0.0.1", "::1", self.host.lower()} if is_loopback(self.host) else set[str]()
        return frozenset({*_listed(self.allowed_hosts), *local})


def _listed(value: str) -> list[str]:
    return [part.strip().lower() for part in value.split(",") if part.strip()]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host.split("%", 1)[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"
