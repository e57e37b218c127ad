"""The consumer: `consumer.py` (what users call), `options.py`, `fetching.py` (leaders, positions, errors).

Groups: `group.py` (a consumer's group), `membership.py` (the interface of both group protocols), `classic.py` (the
protocol with JoinGroup), `consumer_protocol.py` (KIP-848), `holdings.py` (how partitions come and go), `steps.py` (what
polls run for the group), `assignor.py` (the base class of assignors). The data plane runs without the GIL:
`_core/client/consumer/fetch` and `records`. Read their .pxd first.
"""
