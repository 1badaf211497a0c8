"""Fuzzers: the core on mutated bytes (core.py), a server with the module on random commands (wire.py); their corpus."""
