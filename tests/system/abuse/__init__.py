"""Clients that do their worst: one kind of abuse in each file of this package.

A file has a function `abuse(target)`, which continues until `target.has_time()` is false, and a docstring whose first
line says what the client does.  It runs as a process of its own (`tests.system.abuse.__main__`), on loopback only; its
memory is bounded.  A new file is found by its name, by the storm and by its test.
"""
