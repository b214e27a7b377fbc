"""Measurements: one question a file, `python -m bench.QUESTION [--json]`, all on the runner of `bench.runner`."""
