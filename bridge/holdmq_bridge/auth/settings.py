"""The settings of logins, with defaults and units: a base class of the bridge's settings."""

import ipaddress
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from holdmq_bridge.auth.certificates import CertificateName


class AuthSettings(BaseModel):
    """Who may connect, and the cost of logins."""

    model_config = ConfigDict(frozen=True)

    allow_anonymous: bool | None = Field(
        None,
        description="Whether clients without username and certificate may connect. Not set: only while there are "
        "neither users nor rules and the bridge listens on loopback alone.",
    )
    certificate_name: CertificateName = Field(
        CertificateName.NONE,
        description="Part of a client's certificate that is the username: none, cn, san-dns, san-email or san-uri.",
    )
    certificate_without_user: bool = Field(
        False, description="Accept a client by its certificate even if no user of that name exists."
    )
    auth_threads: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="Passwords checked at the same time. Each check takes 19 MiB and one processor."
    )
    auth_max_waiting: PositiveInt = Field(
        512,
        description="Maximum number of logins that wait for a password check. At the limit a login of the address "
        "with the "
        "most of them is refused as busy (0x89).",
    )
    auth_max_lookups: PositiveInt = Field(
        10_000,
        description="Maximum number of logins that wait for the server to look up their user. Further ones are "
        "refused as busy "
        "(0x89).",
    )
    auth_cached_logins: Annotated[int, Field(ge=0)] = Field(
        100_000,
        description="Maximum number of correct passwords that are remembered, so that a client that comes back costs "
        "no second "
        "check.",
    )
    auth_cached_s: PositiveFloat = Field(3600.0, description="How long a correct password is remembered.")
    auth_free_failures: Annotated[int, Field(ge=0)] = Field(
        5, description="Wrong passwords of one user from one address that have no consequence."
    )
    auth_ban_first_s: PositiveFloat = Field(
        1.0,
        description="How long a user is refused from that address (0x8A) after the next wrong password. Each "
        "further one doubles the time.",
    )
    auth_ban_max_s: PositiveFloat = Field(
        300.0, description="Longest time that a user is refused from one address after wrong passwords."
    )
    auth_address_failures: Annotated[int, Field(ge=0)] = Field(
        100,
        description="Wrong passwords from one address, for whatever users, above which that address is refused "
        "(0x8A). Users who have logged in from there before are still checked. 0: no limit.",
    )
    auth_address_failures_per_s: PositiveFloat = Field(
        1.0, description="Wrong passwords per second by which the allowance of an address recovers."
    )
    auth_max_sources: PositiveInt = Field(
        10_000, description="Maximum number of users and addresses with wrong passwords that are remembered."
    )
    auth_poll_s: PositiveFloat = Field(
        5.0, description="Interval between two checks for changed users or rules, in case a notice was lost."
    )


def is_loopback(host: str) -> bool:
    """Whether an address to listen on can only be reached from this machine. A path is a Unix socket."""
    if host == "localhost" or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host.split("%", 1)[0]).is_loopback
    except ValueError:
        return False
