"""Produce (key 0): read, check, append, answer.

Start with `produce.pxd`. `check` looks at every batch before anything is appended, `response` writes the answer, at
once or when the flushes that it waits for are done.
"""
