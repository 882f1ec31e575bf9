"""What is measured: each module is one command of `python -m benchmarks`."""
