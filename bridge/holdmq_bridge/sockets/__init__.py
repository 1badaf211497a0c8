"""Clients' sockets: the ports, TLS, WebSocket, the PROXY protocol, and the pump that reads and writes most of them.

Uses `base` and `process`.  A socket knows its client as a `Receiver` (stream.py), the pump its owner as a `PumpHost`.
"""
