"""Speed, measured beside a rival in the same run: `python -m benchmarks`."""
