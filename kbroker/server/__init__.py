"""The running broker: acceptor, processors, request channel, one handler per API, metrics and health over HTTP.

Read `broker.py` first: it builds, starts and stops every part. `home.py` is what a broker is in: `alone.py` or
`member.py`. `dispatch.py` takes each request to its handler.
"""
