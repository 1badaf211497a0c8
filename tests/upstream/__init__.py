"""The suites of Redis and Valkey themselves, run with the module loaded."""
