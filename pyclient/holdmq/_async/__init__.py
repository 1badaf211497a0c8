"""The asyncio client, written by hand; `holdmq._sync` and its tests are generated from it by tools/generate_sync.py."""
