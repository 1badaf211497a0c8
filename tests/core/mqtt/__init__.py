"""Tests of the MQTT codec and of WebSocket frames."""
