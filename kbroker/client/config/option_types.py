"""The options as keywords, for type checkers and editors: what `**options` of each client may be.

Made by `make docs` (tools/make_client_options_docs.py) from the tables of options; do not edit. A mapping may have the
names with dots, the old names too, and strings for all values.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict

from kbroker.client.assignors.assignor import Assignor
from kbroker.client.handlers import ProducerHandler

Partitioner = Literal["murmur2", "murmur2_random", "random", "round_robin", "consistent", "consistent_random", "sticky"]


class NetworkOptions(TypedDict, total=False):
    bootstrap_servers: str | Sequence[str]
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"]
    client_id: str
    request_timeout_ms: int
    default_api_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    connections_max_idle_ms: int
    broker_version_fallback: Literal["", "0.9.0", "0.8.2"]
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    receive_message_max_bytes: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    sasl_username: str
    sasl_password: str
    ssl_ca_location: str | os.PathLike[str]
    ssl_certificate_location: str | os.PathLike[str]
    ssl_key_location: str | os.PathLike[str]
    ssl_key_password: str
    ssl_endpoint_identification_algorithm: Literal["https", "none", ""]
    ssl_context: ssl.SSLContext | None


class ZooKeeperOptions(TypedDict, total=False):
    zookeeper_connect: str
    zookeeper_session_timeout_ms: int
    zookeeper_connection_timeout_ms: int | None


class ProducerOptions(NetworkOptions, ZooKeeperOptions, total=False):
    acks: int | Literal["all"]
    enable_idempotence: bool | None
    transactional_id: str | None
    transaction_timeout_ms: int
    batch_size: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    compression_level: int | None
    linger_ms: int
    buffer_memory: int
    queue_buffering_max_messages: int
    max_block_ms: int
    queue_enqueue_timeout_ms: int | None
    max_request_size: int
    max_in_flight_requests_per_connection: int
    delivery_timeout_ms: int
    retries: int
    partitioner: Partitioner | Callable[[str, Any, int], int]
    partitioner_sticky_bytes: int
    allow_auto_create_topics: bool
    key_encoder: Literal["bytes", "string", "json"] | Callable[[Any], bytes | str | None] | None
    value_encoder: Literal["bytes", "string", "json"] | Callable[[Any], bytes | str | None] | None
    batch_num_messages: int
    producer_type: Literal["async", "sync"]
    handlers: ProducerHandler | Sequence[ProducerHandler]


class ConsumerOptions(NetworkOptions, total=False):
    auto_offset_reset: Literal["earliest", "latest", "none"]
    isolation_level: Literal["read_uncommitted", "read_committed"]
    max_poll_records: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    queued_max_bytes: int
    inflated_max_bytes: int
    check_crcs: bool
    group_id: str | None
    group_instance_id: str | None
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    group_protocol: Literal["classic", "consumer"]
    group_remote_assignor: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    partition_assignment_strategy: str | Assignor | Sequence[str | Assignor]
    allow_auto_create_topics: bool
    exclude_internal_topics: bool
    client_rack: str


class SimpleConsumerOptions(NetworkOptions, total=False):
    isolation_level: Literal["read_uncommitted", "read_committed"]
    inflated_max_bytes: int
    check_crcs: bool
    client_rack: str


class ConnectorOptions(NetworkOptions, ZooKeeperOptions, total=False):
    isolation_level: Literal["read_uncommitted", "read_committed"]
    fetch_min_bytes: int
    fetch_max_bytes: int
    queued_max_bytes: int
    inflated_max_bytes: int
    check_crcs: bool
    exclude_internal_topics: bool
    client_rack: str
    group_id: str | None
    consumer_id: str | None
    auto_offset_reset: str
    consumer_timeout_ms: int
    auto_commit_enable: bool
    auto_commit_interval_ms: int
    offsets_storage: Literal["zookeeper", "kafka"]
    dual_commit_enabled: bool
    queued_max_message_chunks: int
    partition_assignment_strategy: Literal["range", "roundrobin"]
    rebalance_max_retries: int
    rebalance_backoff_ms: int
    max_partition_fetch_bytes: int
    fetch_max_wait_ms: int
