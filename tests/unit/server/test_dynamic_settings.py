"""Every setting that may be changed while the broker runs reaches the part that uses it, and so does its removal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import pytest

from kbroker.cluster.peers import PeerNetwork
from kbroker.config.broker_config import load_config
from kbroker.config.definitions import SETTINGS
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.server.log_options import CODECS
from kbroker.server.replica_fetchers import ReplicaFetchers
from kbroker.server.replication_throttle import FOLLOWER_RATE
from tests.kit.brokers.whole import WholeBroker
from tests.kit.clients.wire import WireClient

TOPIC, BROKER = 2, 4
OF_ALL_BROKERS = ""
R = M.IncrementalAlterConfigsRequest


class Running(WholeBroker):
    """A broker with one topic that has no settings of its own."""

    def __enter__(self) -> Self:
        super().__enter__()
        asked = [M.MetadataRequest.MetadataRequestTopic(name="t")]
        (topic,) = self.call(ApiKey.METADATA, 12, M.MetadataRequest(topics=asked)).topics
        assert topic.error_code == 0
        return self

    def alter(self, name: str, value: str | None) -> tuple[ErrorCode, str | None]:
        """Set, or with None delete, one setting for all brokers."""
        config = R.AlterableConfig(name=name, config_operation=0 if value is not None else 1, value=value)
        resource = R.AlterConfigsResource(resource_type=BROKER, resource_name=OF_ALL_BROKERS, configs=[config])
        (answer,) = self.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, R(resources=[resource])).responses
        return ErrorCode(answer.error_code), answer.error_message


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("data")) as started:
        yield started


Look = Callable[[Running], Any]


def of_logs(option: str) -> Look:
    """Look at an option that the topic's log uses."""

    def look(running: Running) -> Any:
        log = running.broker._logs.get(TopicPartition("t", 0))
        assert log is not None
        return getattr(log.options, option)

    return look


def of_cleaner(option: str) -> Look:
    """Look at an option that the cleaner's threads use."""
    return lambda running: getattr(running.broker._logs.cleaner._options, option)


def of_topics(name: str) -> Look:
    """Look at a setting that DescribeConfigs shows for the topic; nothing uses it yet."""

    def look(running: Running) -> Any:
        D = M.DescribeConfigsRequest
        resource = D.DescribeConfigsResource(resource_type=TOPIC, resource_name="t", configuration_keys=[name])
        (result,) = running.call(ApiKey.DESCRIBE_CONFIGS, 4, D(resources=[resource])).results
        (config,) = result.configs
        return config.value

    return look


class Change(NamedTuple):
    text: str
    look: Look
    seen: Any


CHANGES = {
    "max.connections": Change("77", lambda running: running.broker._acceptor._limits.max_connections(), 77),
    "max.connections.per.ip": Change(
        "78", lambda running: running.broker._acceptor._limits.max_connections_per_ip("10.0.0.1"), 78
    ),
    "max.connections.per.ip.overrides": Change(
        "10.0.0.2:5, localhost:79",
        lambda running: running.broker._acceptor._limits.max_connections_per_ip("127.0.0.1"),
        79,
    ),
    "producer.id.expiration.ms": Change("80", lambda running: running.broker._logs.producer_id_expiration_ms, 80),
    "message.max.bytes": Change("81", of_logs("max_message_bytes"), 81),
    "compression.type": Change("zstd", of_logs("compression"), CODECS["zstd"]),
    "log.segment.bytes": Change("1048576", of_logs("segment_bytes"), 1 << 20),
    "log.roll.ms": Change("82", of_logs("segment_ms"), 82),
    "log.roll.jitter.ms": Change("83", of_logs("segment_jitter_ms"), 83),
    "log.retention.ms": Change("84", of_logs("retention_ms"), 84),
    "log.retention.bytes": Change("85", of_logs("retention_bytes"), 85),
    "log.segment.delete.delay.ms": Change("86", of_logs("file_delete_delay_ms"), 86),
    "log.cleanup.policy": Change("compact", of_logs("compacted"), True),
    "log.flush.interval.messages": Change("87", of_logs("flush_messages"), 87),
    "log.flush.interval.ms": Change("88", of_logs("flush_ms"), 88),
    "log.index.interval.bytes": Change("89", of_logs("index_interval_bytes"), 89),
    "log.index.size.max.bytes": Change("90", of_logs("index_max_bytes"), 90),
    "log.message.timestamp.type": Change("LogAppendTime", of_logs("log_append_time"), True),
    "log.message.timestamp.before.max.ms": Change("91", of_logs("timestamp_before_max_ms"), 91),
    "log.message.timestamp.after.max.ms": Change("92", of_logs("timestamp_after_max_ms"), 92),
    "log.message.timestamp.difference.max.ms": Change("93", of_logs("timestamp_before_max_ms"), 93),
    "log.cleaner.delete.retention.ms": Change("94", of_logs("delete_retention_ms"), 94),
    "log.cleaner.min.compaction.lag.ms": Change("95", of_logs("min_compaction_lag_ms"), 95),
    "log.cleaner.max.compaction.lag.ms": Change("96", of_logs("max_compaction_lag_ms"), 96),
    "log.cleaner.min.cleanable.ratio": Change("0.25", of_logs("min_cleanable_ratio"), 0.25),
    "log.cleaner.threads": Change("2", of_cleaner("threads"), 2),
    "log.cleaner.dedupe.buffer.size": Change("1048576", of_cleaner("dedupe_buffer_size"), 1 << 20),
    "log.cleaner.io.buffer.load.factor": Change("0.5", of_cleaner("dedupe_load_factor"), 0.5),
    "log.cleaner.io.buffer.size": Change("4096", of_cleaner("io_buffer_size"), 4096),
    "log.cleaner.io.max.bytes.per.second": Change("97", of_cleaner("io_max_bytes_per_second"), 97.0),
    "log.cleaner.backoff.ms": Change("98", of_cleaner("backoff_ms"), 98),
    "log.message.downconversion.enable": Change("false", of_logs("downconversion"), False),
    "transaction.partition.verification.enable": Change("false", of_logs("verify_transactions"), False),
    "log.preallocate": Change("true", of_logs("preallocate"), True),
    "leader.replication.throttled.rate": Change("99", lambda running: running.broker._leader_throttle.rate, 99),
    "replica.alter.log.dirs.io.max.bytes.per.second": Change(
        "100", lambda running: running.broker._logs.moves.throttle.rate, 100
    ),
    **{
        name: Change(text, of_topics(own), text)
        for name, own, text in [
            ("min.insync.replicas", "min.insync.replicas", "2"),
            ("compression.gzip.level", "compression.gzip.level", "3"),
            ("compression.lz4.level", "compression.lz4.level", "4"),
            ("compression.zstd.level", "compression.zstd.level", "5"),
            ("unclean.leader.election.enable", "unclean.leader.election.enable", "true"),
        ]
    },
}


OF_MEMBERS = {FOLLOWER_RATE}
"""Dynamic settings of which a broker that is alone makes no use."""


def test_every_dynamic_setting_is_in_the_table() -> None:
    assert set(CHANGES) | OF_MEMBERS == {name for name, setting in SETTINGS.items() if setting.dynamic}


def test_the_rate_at_which_a_follower_copies_reaches_its_fetchers() -> None:
    config = load_config(None, [f"{FOLLOWER_RATE}=5000"], environment={})
    network = PeerNetwork(1)
    fetchers = ReplicaFetchers(1, config, network.peers())
    try:
        assert fetchers._throttle.rate == 5000
        fetchers.take_config(config.with_dynamic({FOLLOWER_RATE: "7000"}))
        assert fetchers._throttle.rate == 7000
        fetchers.take_config(load_config())
        assert fetchers._throttle.rate == (1 << 63) - 1
    finally:
        fetchers.close()
        network.close()


@pytest.mark.parametrize("name", CHANGES)
def test_a_dynamic_setting_has_effect_while_the_broker_runs(running: Running, name: str) -> None:
    text, look, seen = CHANGES[name]
    before = look(running)
    assert before != seen
    assert running.alter(name, text) == (ErrorCode.NONE, None)
    assert look(running) == seen
    assert running.alter(name, None) == (ErrorCode.NONE, None)
    assert look(running) == before


def test_a_limit_for_one_address_is_held_to_from_the_change_on(running: Running) -> None:
    port = running.port
    name = "max.connections.per.ip.overrides"
    with WireClient("127.0.0.1", port) as other:
        # Connected is not accepted yet.
        assert other.call(ApiKey.API_VERSIONS, 0, M.ApiVersionsRequest()).error_code == 0
        assert running.alter(name, "localhost:1") == (ErrorCode.NONE, None)
        with WireClient("127.0.0.1", port) as refused:
            assert refused.is_closed()
        assert other.call(ApiKey.API_VERSIONS, 0, M.ApiVersionsRequest()).error_code == 0, "who is there stays"
        assert running.alter(name, None) == (ErrorCode.NONE, None)
        with WireClient("127.0.0.1", port) as welcome:
            assert welcome.call(ApiKey.API_VERSIONS, 0, M.ApiVersionsRequest()).error_code == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("max.connections.per.ip.overrides", text) for text in ("x", "a:b", "a:-1", "a:1,b", "a:9999999999")),
        ("max.connections", "-1"),
        ("message.max.bytes", "much"),
        ("compression.type", "brotli"),
    ],
)
def test_a_wrong_value_is_refused_and_changes_nothing(running: Running, name: str, text: str) -> None:
    look = CHANGES[name].look
    before = look(running)
    code, said = running.alter(name, text)
    assert code == ErrorCode.INVALID_REQUEST
    assert said is not None and said.startswith(f"Invalid value {text} for configuration {name}: ")
    assert look(running) == before
