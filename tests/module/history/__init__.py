"""Tests of stores, shards and cursors."""
