"""Tests of persistent pub/sub: channels, hand-off, interception."""
