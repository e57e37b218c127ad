"""Bytes that a producer would not make, and the harness and the numbers that parsers are tried with.

What a right batch means is in `models`. Read `parser_cases.py` first.
"""
