from pathlib import Path
from typing import Any
from uuid import UUID

from kbroker.metrics.registry import Distribution, Registry, Sample
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.server.measurements import IdleShare, ServerMeasurements, measure_storage
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions
from tests.kit.logs.home import batch_of
from tests.kit.parts.processors import ProcessorRig, wait_until


def produce_request(topic: str) -> M.ProduceRequest:
    data = M.ProduceRequest.PartitionProduceData(index=0, records=batch_of([b"x"]))
    topic_data = M.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    return M.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic_data])


def test_what_was_appended_read_and_flushed_is_counted_by_topic_and_directory(tmp_path: Path) -> None:
    logs = LogManager(StorageOptions((str(tmp_path),), flusher_threads=1))
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


def test_requests_are_counted_by_api_with_their_time_and_errors(tmp_path: Path) -> None:
    with ProcessorRig(tmp_path, processors=2) as rig:
        rig.create("t")
        measurements = ServerMeasurements(rig.processors, rig.channel, rig.pool)
        with rig.connect() as one, rig.connect() as other:
            for client, topic in ((one, "t"), (other, "t"), (other, "nothing")):
                client.call(ApiKey.PRODUCE, 9, produce_request(topic))
            found: dict[tuple[str, ...], Any] = {}

            def all_are_counted() -> bool:
                found.update({(sample.name, *sample.labels): sample.value for sample in measurements.measure()})
                took = found["kbroker_request_seconds", "Produce"]
                return took.counts[-1] == 3

            wait_until(all_are_counted, "the time of a request is counted once its answer is on the way")
            registry = Registry()
            registry.add(measurements.measure)
            registry.collect()
    assert found["kbroker_requests_total", "Produce"] == 3
    assert found["kbroker_request_errors_total", "Produce", "UNKNOWN_TOPIC_OR_PARTITION"] == 1
    took = found["kbroker_request_seconds", "Produce"]
    assert isinstance(took, Distribution)
    assert len(took.counts) == len(took.bounds) + 1 and list(took.counts) == sorted(took.counts)
    assert 0 < took.sum < 10
    assert found["kbroker_request_bytes_total", "Produce"] > 0 and found["kbroker_response_bytes_total", "Produce"] > 0
    assert found["kbroker_connections", "0"] == found["kbroker_connections", "1"] == 1
    assert (found["kbroker_request_queue_size",], found["kbroker_request_queue_capacity",]) == (0, 100)
    for name in ("kbroker_handler_idle_ratio",), ("kbroker_processor_idle_ratio", "0"):
        share = found[name]
        assert isinstance(share, float) and 0 <= share <= 1


def test_the_idle_share_is_that_of_the_time_between_two_looks() -> None:
    share = IdleShare()
    assert share.look(10**18) == 0.0
    assert share.look(10**18) == 1.0


def test_a_wait_that_goes_on_counts_as_idle(tmp_path: Path) -> None:
    with ProcessorRig(tmp_path) as rig:
        (processor,) = rig.processors
        before = processor.idle_ns
        wait_until(lambda: processor.idle_ns >= before + 20_000_000, "20 ms of idleness")
        assert processor.turns <= 2  # it was one wait, not many
        assert processor.idle_share > 0
