"""What every client is built from: its background thread, its connections to brokers, what it knows of the cluster.

`thread.py` is the thread, an asyncio loop whose selector is the compiled pump; `faces.py` gives its coroutines to
callers as blocking or awaitable methods. `network.py` has what a client's connections share, `connecting.py` makes
them, `connection.py` is one of them, `resolver.py` finds addresses, `versions.py` chooses the version of each API.
`cluster.py` has the connections to all brokers, the metadata and the coordinators, `cluster_view.py` the metadata at
one time, `leaders.py` who leads, `backoff.py` the waits between attempts. TLS and SASL are in `client/security/`. Read
`thread.py` first.
"""
