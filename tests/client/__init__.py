"""Tests of the Python client; those in `_sync` are generated from those in `_async`."""
