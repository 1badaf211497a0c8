"""The server's password from a file, so that it is in no URL, command line or environment.

HOLDMQ_PASSWORD_FILE names the file.  A password in the URL wins.  With HOLDMQ_ALLOW_NO_PASSWORD=yes the file may be
missing: the server has no password then.
"""

import os
import re
from pathlib import Path
from urllib.parse import quote

__all__ = ["ALLOW_NO_PASSWORD", "PASSWORD_FILE", "with_password", "without_password"]

PASSWORD_FILE = "HOLDMQ_PASSWORD_FILE"  # noqa: S105 - the name of a variable
"""The environment variable that names the file."""

ALLOW_NO_PASSWORD = "HOLDMQ_ALLOW_NO_PASSWORD"  # noqa: S105 - the name of a variable
"""The environment variable that allows the file to be missing, by the value `yes`."""


def without_password(url: str) -> str:
    """Returns the URL of a server as it may be shown."""
    return re.sub(r"([?&](?:sentinel_)?password=)[^&#]*", r"\1***", re.sub(r"(://[^:/]*):.*@", r"\1:***@", url))


def with_password(url: str) -> str:
    """Returns the URL of a server with the password of the file, if there is a file and the URL has none.

    Raises:
        ValueError: the file cannot be read; the text names it.
    """
    path = os.environ.get(PASSWORD_FILE)
    scheme, separator, rest = url.partition("://")
    if not path or not separator:
        return url
    authority, slash, tail = rest.partition("/")
    user, at, address = authority.rpartition("@")
    if ":" in user:
        return url
    if os.environ.get(ALLOW_NO_PASSWORD) == "yes" and not Path(path).exists():
        return url
    try:
        password = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{PASSWORD_FILE} names {path!r}, which cannot be read: {error}") from error
    return f"{scheme}://{user}:{quote(password, safe='')}@{address if at else authority}{slash}{tail}"
