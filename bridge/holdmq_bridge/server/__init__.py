"""The Redis or Valkey server: the link to it, commands and their replies, subscriptions, the lease, readiness.

Uses `base` and `process`.  Knows nothing of clients: it reports to a `LinkListener`, or to callbacks.
"""
