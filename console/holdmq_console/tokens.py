"""API tokens: made for a user, with a part of the user's rights, until they are revoked or expire.

    hmq_<id>_<secret>     the token, shown once
    id -> {"user", "name", "rights", "created", "expires", "digest", "credential"}     in the hash of tokens

The server stores only the SHA-256 of the secret, which is random. So reading the server's data is not enough to use a
token.
"""

import hashlib
import json
import re
import secrets
import time
from dataclasses import asdict, dataclass

from holdmq_bridge.auth.records import User
from holdmq_console.broker import Broker
from holdmq_console.cookies import credential_of, same
from holdmq_console.keys import TOKENS
from holdmq_console.principal import Right
from holdmq_console.problems import ProblemError

MAX_TOKENS = 1000
MAX_OF_USER = 100
MAX_TIME = 2**40
_TEXTS = ("user", "name", "digest", "credential")
_TIMES = ("created", "expires")
_FORM = re.compile(r"hmq_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret.

    Attributes:
        id: its id.
        user: whose it is.
        name: what it is for.
        rights: what it may do, as far as its user may.
        created: in seconds since 1970.
        expires: in seconds since 1970; 0: never.
        digest: SHA-256 of the secret.
        credential: of which password of the user it is. With another one, or another user of that name, it is void.
    """

    id: str
    user: str
    name: str
    rights: Right
    created: int
    expires: int
    digest: str
    credential: str

    @property
    def has_expired(self) -> bool:
        """Whether its time is over."""
        return bool(self.expires) and time.time() >= self.expires

    @classmethod
    def parse(cls, token_id: str, raw: bytes) -> "Token | None":
        """From the text in the server; None if the console has not written it."""
        try:
            fields = json.loads(raw)
            are_whole = all(isinstance(fields[name], str) for name in _TEXTS) and all(
                isinstance(fields[name], int) and 0 <= fields[name] < MAX_TIME for name in _TIMES
            )
            return cls(id=token_id, **{**fields, "rights": Right.of(fields["rights"])}) if are_whole else None
        except (ValueError, TypeError, KeyError):
            return None

    def text(self) -> str:
        """As the server keeps it."""
        fields = asdict(self)
        del fields["id"]
        return json.dumps({**fields, "rights": self.rights.words})


async def create(broker: Broker, user: User, name: str, rights: Right, days: int) -> tuple[Token, str]:
    """Makes a token, and returns it with its secret text.

    Raises:
        ProblemError: there are too many.
    """
    if await broker.client.hlen(TOKENS) >= MAX_TOKENS:
        raise ProblemError(409, f"there are {MAX_TOKENS} tokens, which is the maximum; revoke one first")
    if sum(one.user == user.name for one in await all_of(broker)) >= MAX_OF_USER:
        raise ProblemError(409, f"{user.name} has {MAX_OF_USER} tokens, which is the maximum; revoke one first")
    token_id, secret, now = secrets.token_hex(8), secrets.token_urlsafe(32), int(time.time())
    expires = now + days * 86_400 if days else 0
    credential = credential_of(user.password)
    token = Token(token_id, user.name, name, rights, now, expires, _digest(secret), credential)
    await broker.client.hset(TOKENS, token_id, token.text())
    return token, f"hmq_{token_id}_{secret}"


async def find(broker: Broker, text: str) -> Token | None:
    """The token with this text, if it is one that was not revoked and has not expired."""
    form = _FORM.fullmatch(text)
    raw = None if form is None else await broker.client.hget(TOKENS, form[1])
    if form is None or raw is None:
        return None
    token = Token.parse(form[1], raw)
    if token is None or token.has_expired:
        return None
    return token if same(token.digest, _digest(form[2])) else None


async def all_of(broker: Broker) -> list[Token]:
    """All tokens, the newest first."""
    raw = await broker.client.hgetall(TOKENS)
    found = (Token.parse(key.decode(), text) for key, text in raw.items())
    return sorted(filter(None, found), key=lambda one: -one.created)


async def revoke(broker: Broker, token_id: str) -> bool:
    """Ends a token; returns whether there was one."""
    return bool(await broker.client.hdel(TOKENS, token_id))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
