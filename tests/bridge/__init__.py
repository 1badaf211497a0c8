"""The bridge: its sans-I/O parts from byte strings, and real bridges on real servers with real clients."""
