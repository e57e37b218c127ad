"""The cluster's metadata: brokers, topics, partitions, their configs and ids, and the changes to them.

`image.py` is what readers use: immutable, and replaced as a whole. A change is durable in the coordination store before
it is answered. `topic_configs.py` has the settings of a topic. This package does not know the
logs on disk: it tells a `PartitionHost` which logs to have. On a broker that is alone `topics.py` makes changes; on a
member `shared_topics.py` asks the controller, `membership.py` joins and registers, and `controller.py` drives the rules
of `rules/controller`. Read `image.py` first.
"""
