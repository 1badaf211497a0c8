"""Bounds of one user in the server: from the user's record, for SESSION.OPEN."""

from dataclasses import dataclass, fields
from typing import Final, Self

MOST: Final = 2**40

_WORDS: Final = {"sessions": "USERSESSIONS", "queue_bytes": "USERBYTES", "retained": "USERRETAINED"}


@dataclass(frozen=True, slots=True)
class Quota:
    """Bounds of one user.  0: no bound; None: the bound of the server's setting.

    Attributes:
        sessions: most sessions at a time (`holdmq.max-sessions-per-user`).
        queue_bytes: most bytes of messages in all their queues (`holdmq.max-queue-bytes-per-user`).
        retained: most retained messages (`holdmq.max-retained-per-user`).
    """

    sessions: int | None = None
    queue_bytes: int | None = None
    retained: int | None = None

    @property
    def words(self) -> tuple[str | int, ...]:
        """Options of SESSION.OPEN."""
        return tuple(part for name, bound in self._bounds() for part in (_WORDS[name], bound))

    def check(self) -> Self:
        """Returns it if the server accepts it.

        Raises:
            ValueError: the text names the bound that the server does not accept.
        """
        for name, bound in self._bounds():
            if not 0 <= bound <= MOST:
                raise ValueError(f"{_name(name)} is {bound}; expected a whole number from 0 to {MOST}")
        return self

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses the text that str() makes.

        Raises:
            ValueError: it is another text.
        """
        bounds: dict[str, int] = {}
        for part in text.split():
            name, _, number = part.partition("=")
            key = name.replace("-", "_")
            if key not in _WORDS or key in bounds or not (number.isascii() and number.isdigit()):
                raise ValueError(
                    f"{part!r}; expected {', '.join(f'{_name(one)}=<number>' for one in _WORDS)}, each once"
                )
            bounds[key] = int(number[:20])
        return cls(**bounds).check()

    def __str__(self) -> str:
        return " ".join(f"{_name(name)}={bound}" for name, bound in self._bounds())

    def _bounds(self) -> list[tuple[str, int]]:
        found = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [(name, bound) for name, bound in found if bound is not None]


def _name(attribute: str) -> str:
    return attribute.replace("_", "-")


NO_QUOTA: Final = Quota()
