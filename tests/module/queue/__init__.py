"""Tests of the bounds, totals, expiry and removal of queues."""
