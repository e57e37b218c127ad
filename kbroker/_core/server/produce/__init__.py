"""Produce (key 0): read, check, append, answer.

Start with `produce.pxd`. `work` has the struct of a Produce in progress, `check` checks every batch before anything is
appended, `response` writes the answer.
"""
