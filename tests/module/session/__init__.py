"""Tests of the commands and the life of sessions, their wills, owners and presence."""
