"""The keys that the console has in the server. The hash tag keeps them in one slot of a cluster.

    {holdmq:console}:key          STRING  32 random bytes that sign cookies; deleting it ends all logins
    {holdmq:console}:ended:<id>   STRING  a login that was ended before its time; expires with the login
    {holdmq:console}:tokens       HASH    id of an API token -> JSON (api tokens: tokens.py)
    {holdmq:console}:audit        STREAM  every change (audit.py)

No key is a list: a publisher to a channel of its name would write to it.
"""

from typing import Final

SIGNING_KEY: Final = "{holdmq:console}:key"
ENDED: Final = "{holdmq:console}:ended:"
TOKENS: Final = "{holdmq:console}:tokens"
AUDIT: Final = "{holdmq:console}:audit"
