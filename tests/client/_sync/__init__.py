# Generated from tests/client/_async/__init__.py by tools/generate_sync.py; change that file.
"""Tests of the synchronous client on real servers."""
