"""Every setting of the broker: name, type, default, range, doc; reading server.properties, overrides and environment.

Read `definitions.py` for the settings, `broker_config.py` for how they become one immutable object. The settings of
topics are in `kbroker.cluster.topic_configs`. Storage, groups and the other parts of the broker do not read settings:
`server/broker.py` fills their small option objects from here.
"""
