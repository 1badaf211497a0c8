"""The MQTT session of one client, without I/O: packets and replies in, actions out.

Uses `base` and `process` (the settings alone).  `session.py` has the states; the other files are its parts.
"""
