"""The user or token behind a request, and its rights."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from holdmq_console.settings import ConsoleSettings


class Right(enum.Flag):
    """What a user of the console may do."""

    NONE = 0
    VIEW = enum.auto()
    """Look at everything but payloads."""
    PAYLOADS = enum.auto()
    """Read payloads."""
    ADMIN = enum.auto()
    """Change things."""

    @property
    def words(self) -> list[str]:
        """The names of the rights."""
        return [str(one.name).lower() for one in Right if one in self]

    @classmethod
    def of(cls, words: Iterable[str]) -> "Right":
        """The inverse of `words`; unknown words give nothing."""
        found = cls.NONE
        for one in cls:
            if str(one.name).lower() in words:
                found |= one
        return found


ALL_RIGHTS = Right.VIEW | Right.PAYLOADS | Right.ADMIN


class Via(enum.StrEnum):
    """How a user was identified."""

    LOCAL = "local"
    """Not at all: there are no users, and only this machine can reach the console."""
    SESSION = "session"
    """By a signed cookie."""
    TOKEN = "token"  # noqa: S105 (a word)
    """By an API token."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks.

    Attributes:
        name: the user's name.
        rights: what they may do.
        via: how they showed who they are.
        address: where they ask from.
        csrf: what their forms have to carry; empty where no cookie speaks for them.
        session: the id of the login, if it is one.
        expires: when the login ends, in seconds since 1970. 0 without a login.
    """

    name: str
    rights: Right
    via: Via
    address: str
    csrf: str = ""
    session: str = ""
    expires: int = 0

    def may(self, right: Right) -> bool:
        """Whether they have this right."""
        return right in self.rights


def rights_of(roles: Iterable[str], settings: ConsoleSettings) -> Right:
    """What the roles of a user give. Payloads alone give nothing."""
    held = set(roles)
    rights = Right.NONE
    if settings.viewer_role in held:
        rights |= Right.VIEW
    if settings.admin_role in held:
        rights |= Right.VIEW | Right.ADMIN
    if rights and settings.payload_role in held:
        rights |= Right.PAYLOADS
    return rights
