"""`make demo`: the tour of HoldMQ on real weather observations, each step checked.

Uses no other folder of the bridge: it runs the programs.
"""
