"""The features that some brokers of the suite lack, and the Kafka release that had each first."""

from __future__ import annotations

from kbroker.protocol.api import ApiKey
from tests.client_suite.suite_broker import Feature

# In the order in which Apache Kafka came to have them.
IDEMPOTENCE = Feature(ApiKey.INIT_PRODUCER_ID, 0, "0.11")
TRANSACTIONS = Feature(ApiKey.ADD_PARTITIONS_TO_TXN, 0, "0.11")
HEADERS = BATCHES = Feature(ApiKey.PRODUCE, 3, "0.11")
DELETE_RECORDS = Feature(ApiKey.DELETE_RECORDS, 0, "0.11")
CONFIGS = Feature(ApiKey.DESCRIBE_CONFIGS, 0, "0.11")
ALTER_CONFIGS = Feature(ApiKey.ALTER_CONFIGS, 0, "0.11")
MORE_PARTITIONS = Feature(ApiKey.CREATE_PARTITIONS, 0, "1.0")
DELETE_GROUPS = Feature(ApiKey.DELETE_GROUPS, 0, "1.1")
LOG_DIRS = Feature(ApiKey.DESCRIBE_LOG_DIRS, 0, "1.0")
MOVING_REPLICAS = Feature(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, "1.0")
ZSTD = Feature(ApiKey.PRODUCE, 7, "2.1")
INCREMENTAL_CONFIGS = Feature(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, "2.3")
STATIC_MEMBERS = Feature(ApiKey.JOIN_GROUP, 5, "2.3")
REMOVE_MEMBERS = Feature(ApiKey.LEAVE_GROUP, 3, "2.4")
DEFAULT_PARTITIONS = Feature(ApiKey.CREATE_TOPICS, 4, "2.4")
DELETE_OFFSETS = Feature(ApiKey.OFFSET_DELETE, 0, "2.4")
GROUP_STATES = Feature(ApiKey.LIST_GROUPS, 4, "2.6")
TOPIC_IDS = Feature(ApiKey.METADATA, 10, "2.8")
FEATURES = Feature(ApiKey.API_VERSIONS, 3, "2.4")
NEWEST_OFFSET = Feature(ApiKey.LIST_OFFSETS, 7, "3.0")
PRODUCERS = Feature(ApiKey.DESCRIBE_PRODUCERS, 0, "2.8")
LIST_TRANSACTIONS = Feature(ApiKey.LIST_TRANSACTIONS, 0, "3.0")
DESCRIBE_TRANSACTIONS = Feature(ApiKey.DESCRIBE_TRANSACTIONS, 0, "3.0")
GROUP_TYPES = Feature(ApiKey.LIST_GROUPS, 5, "3.8")
CONSUMER_GROUPS = Feature(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, "4.0")  # Kafka 3.9 on ZooKeeper knows 0, and refuses it
