"""How fast it is, against what else there is: `python -m benchmarks` measures everything and writes docs/benchmarks.md."""
