"""What the broker's parts have counted, as samples for a scrape. Runs on the scrape's thread, only when one comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kbroker.metrics.registry import Sample
from kbroker.storage.log_manager import LogManager


def measure_storage(logs: LogManager) -> Iterator[Sample]:
    """Traffic and size by topic, partitions, and what flushing cost by directory."""
    messages_in: Counter[str] = Counter()
    bytes_in: Counter[str] = Counter()
    bytes_out: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    offline = 0
    found = logs.logs()
    for log in found:
        state = log.state
        messages_in[state.topic] += state.messages_in
        bytes_in[state.topic] += state.bytes_in
        bytes_out[state.topic] += state.bytes_out
        # A log that nobody has used since the start is not opened for a scrape.
        sizes[state.topic] += state.size if state.state == "open" else 0
        offline += state.state == "offline"
    for name, counts in (
        ("kbroker_messages_in_total", messages_in),
        ("kbroker_bytes_in_total", bytes_in),
        ("kbroker_bytes_out_total", bytes_out),
        ("kbroker_log_size_bytes", sizes),
    ):
        for topic, count in counts.items():
            yield Sample(name, count, (topic,))
    yield Sample("kbroker_topics", len(sizes))
    yield Sample("kbroker_partitions", len(found))
    yield Sample("kbroker_partitions_offline", offline)
    for directory in logs.directories:
        yield Sample("kbroker_log_directory_offline", directory.is_offline, (directory.path,))
        yield Sample("kbroker_flushes_total", directory.flush_count, (directory.path,))
        yield Sample("kbroker_flush_seconds_total", directory.flush_ns / 1e9, (directory.path,))
        yield Sample("kbroker_flushed_acknowledgements_total", directory.acks_flushed, (directory.path,))
