"""`make demo`: the tour of HoldMQ on real weather observations, each step checked."""
