"""The MQTT front end of HoldMQ: translates MQTT to the commands of the module.

    base  <  auth  <  process  <  server, session, sockets  <  broker  <  monitoring
    uplink   `holdmq-bridge link`: links to other brokers
    admin    `holdmq-bridge auth`: the command line for users and rules
    demo     `make demo`

A folder uses only those before it.  Its `__init__.py` says which, and tools/circles.py checks that.  The files here are
programs: `__main__` and `workers` start bridge processes (`serve`), `run` a server and a bridge together, `container`
a server in a container.
"""
