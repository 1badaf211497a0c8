"""Tests of redis_module/cluster: which slots have subscribers of what, and how nodes are told."""
