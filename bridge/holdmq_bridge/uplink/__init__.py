"""A link to another MQTT broker: topics in, out or both, with nothing lost while either side is away.

    HoldMQ server ◄── local.py ── outward.py ──► upstream.py (paho-mqtt) ──► the other broker
                  ◄── local.py ── inward.py  ◄── upstream.py

    settings   of links, from a configuration file or the command line
    rules      topic lines: directions, and topics on the other side
    path       stops messages that circulate between brokers
    local      the link's session at the HoldMQ server
    upstream   the connection to the other broker
    outward, inward    one direction each
    link       one link from its start to its end
    run, cli   a process with several of them

The process holds nothing that cannot be lost.  Waiting messages, messages in flight and received identifiers are in the
link's session `link:<name>` at the server.  So a start is the same after a stop, a crash or a lost connection.

Uses `base`, `process` and `sockets` (for TLS).  It is a client of the server like any other: no bridge has to run.
"""
