"""What some brokers of the suite lack."""

from __future__ import annotations

from kbroker.protocol.api import ApiKey
from tests.client_suite.suite_broker import Feature

# In the order in which Apache Kafka came to have them.
IDEMPOTENCE = Feature(ApiKey.INIT_PRODUCER_ID)
TRANSACTIONS = Feature(ApiKey.ADD_PARTITIONS_TO_TXN)
HEADERS = Feature(ApiKey.PRODUCE, 3)
DELETE_RECORDS = Feature(ApiKey.DELETE_RECORDS)
CONFIGS = Feature(ApiKey.DESCRIBE_CONFIGS)
ALTER_CONFIGS = Feature(ApiKey.ALTER_CONFIGS)
MORE_PARTITIONS = Feature(ApiKey.CREATE_PARTITIONS)
DELETE_GROUPS = Feature(ApiKey.DELETE_GROUPS)
LOG_DIRS = Feature(ApiKey.DESCRIBE_LOG_DIRS)
ZSTD = Feature(ApiKey.PRODUCE, 7)
INCREMENTAL_CONFIGS = Feature(ApiKey.INCREMENTAL_ALTER_CONFIGS)
STATIC_MEMBERS = Feature(ApiKey.JOIN_GROUP, 5)
REMOVE_MEMBERS = Feature(ApiKey.LEAVE_GROUP, 3)
DEFAULT_PARTITIONS = Feature(ApiKey.CREATE_TOPICS, 4)
DELETE_OFFSETS = Feature(ApiKey.OFFSET_DELETE)
GROUP_STATES = Feature(ApiKey.LIST_GROUPS, 4)
TOPIC_IDS = Feature(ApiKey.METADATA, 10)
FEATURES = Feature(ApiKey.API_VERSIONS, 3)
NEWEST_OFFSET = Feature(ApiKey.LIST_OFFSETS, 7)
PRODUCERS = Feature(ApiKey.DESCRIBE_PRODUCERS)
LIST_TRANSACTIONS = Feature(ApiKey.LIST_TRANSACTIONS)
DESCRIBE_TRANSACTIONS = Feature(ApiKey.DESCRIBE_TRANSACTIONS)
GROUP_TYPES = Feature(ApiKey.LIST_GROUPS, 5)
CONSUMER_GROUPS = Feature(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1)  # Kafka 3.9 on ZooKeeper knows 0, and refuses it
