"""A link to another MQTT broker: topics in, out or both, with nothing lost while either side is away.

    HoldMQ server ◄── local.py ── outward.py ──► upstream.py (paho-mqtt) ──► the other broker
                  ◄── local.py ── inward.py  ◄── upstream.py

    settings   what a configuration file or the command line says
    rules      the topic lines: who goes where, under which name
    path       how a message that has been here is known
    local      the link's session at the HoldMQ server
    upstream   the connection to the other broker
    outward, inward    one direction each
    link       one link from its start to its end
    run, cli   a process with several of them

The process holds nothing that cannot be lost: what waits, what is in flight and what was received is in the link's
session `link:<name>` at the server.  So there is one way to begin, after a stop, a crash or a lost connection alike.

Uses `base`, `process` and `sockets` (for TLS).  It is a client of the server like any other: no bridge has to run.
"""
