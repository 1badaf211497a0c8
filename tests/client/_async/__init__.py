"""Tests of the asyncio client on real servers."""
