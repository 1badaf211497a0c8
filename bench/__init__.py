"""Benchmarks of HoldMQ beside their baselines: `python -m bench` for the module, core_bench.py for the core."""
