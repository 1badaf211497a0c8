"""The clients of this process, and the `Bridge` that connects them with the server.

    Bridge ──► Gate, Replays, Unserved ──► Client ──► Session, Stream      Client calls up through `ClientHost`

Uses `base`, `auth`, `process`, `server`, `session` and `sockets`.
"""
