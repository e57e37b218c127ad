"""The cluster simulator: the broker's real decisions, drivers and logs in a virtual world that misbehaves by seed.

One seed is one history, the same each time, byte for byte: `python -m tests.simulation --seed N` prints it.
docs/SIMULATION.md says what is real, what is virtual and what is checked. Read `simulation.py` first, then
`invariants.py`.
"""
