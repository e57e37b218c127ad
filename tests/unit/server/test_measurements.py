from pathlib import Path
from uuid import UUID

from kbroker.metrics.registry import Registry, Sample
from kbroker.model import TopicPartition
from kbroker.server.measurements import measure_storage
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions
from tests.kit.logs import batch_of


def test_what_was_appended_read_and_flushed_is_counted_by_topic_and_directory(tmp_path: Path) -> None:
    logs = LogManager(StorageOptions((str(tmp_path),), node_id=1, cluster_id="c", flusher_threads=1))
    logs.start(lambda _: None, background=False)
    try:
        for topic, partition_id in (("a", 0), ("a", 1), ("b", 0)):
            log = logs.create(topic, UUID(int=ord(topic)), partition_id, LogOptions())
            log.append(batch_of([b"x"] * 3))
        logs.get(TopicPartition("b", 0)).flush()  # type: ignore[union-attr]
        registry = Registry()
        registry.add(lambda: measure_storage(logs))
        found = {(sample.name, *sample.labels): sample.value for _, samples in registry.collect() for sample in samples}
    finally:
        logs.stop()
    assert (found["kbroker_messages_in_total", "a"], found["kbroker_messages_in_total", "b"]) == (6, 3)
    assert found["kbroker_bytes_in_total", "a"] == found["kbroker_log_size_bytes", "a"] == 2 * len(batch_of([b"x"] * 3))
    assert (found["kbroker_topics",], found["kbroker_partitions",], found["kbroker_partitions_offline",]) == (2, 3, 0)
    assert found["kbroker_flushes_total", str(tmp_path)] >= 1
    assert found["kbroker_flush_seconds_total", str(tmp_path)] > 0
    assert isinstance(next(iter(measure_storage(logs))), Sample)
