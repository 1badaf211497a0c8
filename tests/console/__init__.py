"""Tests of the HTTP API and the web console, against real servers."""
