"""Fuzzing: bytes from outside against everything that reads them.

`parsers.py` holds the targets without a broker, `corpus/` the inputs that every `make test` runs again, `run.py` the
coverage-guided run of `make fuzz`. Read `target.py` first.
"""
