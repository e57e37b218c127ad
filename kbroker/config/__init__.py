"""Every setting of the broker: name, type, default, range, doc; reading server.properties, overrides and environment.

Read `definitions.py` for the settings, `broker_config.py` for how they become one immutable object. Settings of topics
live in `kbroker.cluster.topic_configs`. This package sits above the engine: storage, groups and the rest take small
option objects of their own, which `server/broker.py` fills from here.
"""
