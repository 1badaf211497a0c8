"""The server's password from a file, so that it is in no URL, command line or environment.

HOLDMQ_PASSWORD_FILE names the file.  A password in the URL wins.  With HOLDMQ_ALLOW_NO_PASSWORD=yes the file may be
missing: the server has no password then.
"""

import os
from pathlib import Path
from urllib.parse import quote

VARIABLE = "HOLDMQ_PASSWORD_FILE"
NONE_ALLOWED = "HOLDMQ_ALLOW_NO_PASSWORD"


def with_password(url: str) -> str:
    """Returns the URL of a server with the password of the file, if there is a file and the URL has none.

    Raises:
        ValueError: the file cannot be read; the text names it.
    """
    path = os.environ.get(VARIABLE)
    scheme, separator, rest = url.partition("://")
    if not path or not separator:
        return url
    authority, slash, tail = rest.partition("/")
    user, at, address = authority.rpartition("@")
    if ":" in user:
        return url
    if os.environ.get(NONE_ALLOWED) == "yes" and not Path(path).exists():
        return url
    try:
        password = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{VARIABLE} names {path!r}, which cannot be read: {error}") from error
    return f"{scheme}://{user}:{quote(password, safe='')}@{address if at else authority}{slash}{tail}"
