"""The running broker: acceptor, processors, request channel, one handler per API, metrics and health over HTTP.

Read `broker.py` first: it builds, starts and stops every part. `dispatch.py` takes each request to its handler.
"""
