"""The command line `holdmq-bridge auth`: users, roles and rules.

Uses `base`, `auth` and `process` (the settings alone).
"""
