"""Tests of the engine: conversations from byte strings, and a small world around it."""
