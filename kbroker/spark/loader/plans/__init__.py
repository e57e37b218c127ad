"""What a load is going to read, and which hours are complete afterwards.

Read `plan.py` first. `brokers.py` is the only file here that asks brokers; all others work on values. The plan is
carried out in `tasks/`.
"""
