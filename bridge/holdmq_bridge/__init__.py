"""The MQTT front end of HoldMQ: translates MQTT to the commands of the module."""
