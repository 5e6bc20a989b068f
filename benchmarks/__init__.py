"""Side-by-side measurements: `python -m benchmarks.NAME` prints bars, what was measured, and whether they hold."""
