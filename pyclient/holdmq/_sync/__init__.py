# Generated from pyclient/holdmq/_async/__init__.py by tools/generate_sync.py; change that file.
"""The synchronous client, generated from holdmq._async."""
