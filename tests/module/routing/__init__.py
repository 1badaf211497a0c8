"""Tests of publishes: TOPIC.*, retained messages, shared subscriptions, quotas."""
