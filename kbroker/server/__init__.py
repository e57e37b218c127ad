"""The running broker: acceptor, processors, request channel, handlers of each API, and what is told to operators.

Read `broker.py` first: it builds, starts and stops every part. What a request meets is in `dispatch.py`.
"""
