"""What MQTT 3.1.1 and 5.0 ask of a server, shown with raw packets on a real bridge and a real server."""
