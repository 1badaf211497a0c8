"""The jobs, one module for each command `holdmq pipeline ...`."""
