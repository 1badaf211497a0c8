"""Tests of the indexes in memory: they follow the keys."""
