"""One suite of client tests on five brokers: kbroker and Apache Kafka 0.10.2, 2.5, 3.9 (on ZooKeeper) and 4.3.

A test that takes `broker` runs on each. What a broker lacks is a `Feature`, known from its answer to ApiVersions, never
from its name: there the client has to say so (`SuiteBroker.serving`), or the test is skipped and says why
(`SuiteBroker.need`). `make test` has kbroker and the oldest Kafka, `make test-all` all of them. Read `suite_broker.py`
first.
"""
