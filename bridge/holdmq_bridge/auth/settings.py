"""The settings of logins: meant to be a base of the bridge's table of settings, so that they become its options.

Every limit of this package that an operator may want to move stands here, with its default and unit.
"""

import ipaddress
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from holdmq_bridge.auth.certificates import CertificateName


class AuthSettings(BaseModel):
    """Who may connect, and what a login may cost."""

    model_config = ConfigDict(frozen=True)

    allow_anonymous: bool | None = Field(
        None,
        description="whether clients without username and certificate may connect; not set: only as long as there are "
        "neither users nor rules and the bridge listens on loopback alone",
    )
    certificate_name: CertificateName = Field(
        CertificateName.NONE,
        description="what of a client certificate is the username: none, cn, san-dns, san-email or san-uri",
    )
    certificate_without_user: bool = Field(
        False, description="whether a certificate is enough where no user of its name exists"
    )
    auth_threads: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="passwords checked at the same time, 19 MiB and one processor each"
    )
    auth_max_waiting: PositiveInt = Field(
        512, description="logins that wait for a password check; more are refused as busy"
    )
    auth_max_lookups: PositiveInt = Field(
        10_000, description="logins that wait for the server's answer; more are refused as busy"
    )
    auth_cached_logins: Annotated[int, Field(ge=0)] = Field(
        100_000, description="right passwords remembered, so that a fleet that comes back costs little"
    )
    auth_cached_s: PositiveFloat = Field(3600.0, description="seconds that a right password is remembered")
    auth_free_failures: Annotated[int, Field(ge=0)] = Field(
        5, description="wrong passwords of one user from one address without a consequence"
    )
    auth_ban_first_s: PositiveFloat = Field(
        1.0, description="seconds that the next one is refused; doubled with each failure"
    )
    auth_ban_max_s: PositiveFloat = Field(300.0, description="longest such time")
    auth_address_failures: Annotated[int, Field(ge=0)] = Field(
        100,
        description="wrong passwords of one address, whatever the users, beyond which only users are checked that have "
        "logged in from there before; 0: no bound",
    )
    auth_address_failures_per_s: PositiveFloat = Field(
        1.0, description="how many of them an address gets back each second"
    )
    auth_max_sources: PositiveInt = Field(10_000, description="failing users and addresses remembered")
    auth_poll_s: PositiveFloat = Field(
        5.0, description="seconds after which the stored version is looked at, should a notice have been lost"
    )


def is_loopback(host: str) -> bool:
    """Is an address to listen on reachable from this machine alone? A path is (a Unix socket)."""
    if host == "localhost" or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host.split("%", 1)[0]).is_loopback
    except ValueError:
        return False
