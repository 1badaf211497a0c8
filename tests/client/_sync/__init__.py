# Generated from tests/client/_async/__init__.py by tools/generate_sync.py; change that file.
"""Tests of the asyncio client on real servers."""
