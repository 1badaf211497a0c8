"""Tests of src/base."""
