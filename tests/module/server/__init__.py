"""Tests of access rights, slots, replication and loading: what redis_module/server deals with."""
