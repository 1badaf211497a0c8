"""Tests of the index of history."""
