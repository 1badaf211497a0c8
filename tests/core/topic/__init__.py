"""Tests of topics, tries, keys and records."""
