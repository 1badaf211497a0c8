"""Tests of the module on real servers."""
