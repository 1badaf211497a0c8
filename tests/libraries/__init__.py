"""Scripts that use libraries which rely on pub/sub; tests/system/test_libraries.py runs them."""
