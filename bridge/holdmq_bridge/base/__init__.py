"""What any part of the bridge may use: pauses, logs, commands and replies, the address of the server, reason codes.

Uses no other folder of the bridge.
"""
