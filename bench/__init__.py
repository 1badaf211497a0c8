"""What is claimed to be fast, beside its baseline: `python -m bench` for the module, core_bench.py for the core."""
