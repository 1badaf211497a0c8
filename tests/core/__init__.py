"""Tests of the core: its C functions through cffi, against plain Python models, and the Python that wraps them."""
