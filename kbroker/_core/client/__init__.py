"""A client's connections: one pump thread sends and receives for all of them, without the GIL.

Start with `pump.pxd` (the loop, and the engines that work in it). `socket` sends and receives on one connection,
`calls` has the requests that Python makes on one, `nodes` finds the connection to a broker. `producer/` and `consumer/`
hold the engines.

Not here: connecting, TLS handshakes, metadata and retries are coroutines in `kbroker.client`.
"""
