"""The tests of HoldMQ, by part; `tests.support` is the harness."""
