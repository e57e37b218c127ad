"""AdminClient moves replicas between the log directories of a broker: of kbroker, and of Apache Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.client import AdminClient, Consumer, ErrorCode, PartialFailure, Producer, TopicPartitionReplica
from tests.client_suite.suite_broker import eventually
from tests.kit.brokers.process import BrokerProcess
from tests.kit.kafka import maven
from tests.kit.kafka.process import KafkaInMemory

SECONDS = 60.0


@pytest.mark.parametrize("kind", ["kbroker", pytest.param("kafka", marks=pytest.mark.slow)])
def test_a_replica_moves_to_another_directory_with_its_records(kind: str, tmp_path: Path) -> None:
    if kind == "kafka":
        try:
            KafkaInMemory.classpath()
        except maven.MavenFailed as missing:
            pytest.skip(str(missing))
    paths = [str(tmp_path / name) for name in ("one", "two")]
    settings = {"log.dirs": ",".join(paths)}
    broker = KafkaInMemory(settings) if kind == "kafka" else BrokerProcess(settings)
    with broker as kafka, AdminClient(bootstrap_servers=kafka.address) as admin:
        admin.create_topic("moved", 1)
        with Producer(bootstrap_servers=kafka.address) as producer:
            assert producer.send_many("moved", [b"%d" % number for number in range(1000)]).result(SECONDS) == 1000
        (node,) = admin.describe_cluster().brokers
        replica, later = (TopicPartitionReplica(topic, 0, node.node_id) for topic in ("moved", "later"))
        before = admin.describe_replica_log_dirs([replica])[replica]
        assert before.path in paths
        assert (before.future_path, before.future_offset_lag) == (None, -1)
        (other,) = set(paths) - {before.path}
        with pytest.raises(PartialFailure) as partly:
            admin.alter_replica_log_dirs({replica: other, later: other})
        assert {each: error.code for each, error in partly.value.errors.items()} == {
            later: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        eventually(lambda: admin.describe_replica_log_dirs([replica])[replica].path == other)
        admin.create_topic("later", 1)
        assert admin.describe_replica_log_dirs([later])[later].path == other
        with Consumer(bootstrap_servers=kafka.address, auto_offset_reset="earliest") as consumer:
            consumer.assign_topics("moved")
            count = 0
            while count < 1000:
                count += len(consumer.poll(SECONDS))
