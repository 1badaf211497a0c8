"""The Python client of HoldMQ, over redis-py."""
