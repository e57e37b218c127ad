"""Counts the records that a producer sends, by topic and window of time, and publishes the counts in an audit topic.

Other programs count what they have received of the same topics and windows, and write to the same audit topic. Where
the numbers agree, nothing was lost. A record of the audit topic is JSON. Its key has all but the numbers; of several
records with one key the last counts:

    {"topic": "views", "tier": "producer", "source": "9f2c...", "window_ms": 600000, "start_ms": 1700000400000}
    {..., "records": 81234, "bytes": 9012345}
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.config.network import NETWORK
from kbroker.client.errors import BrokerError, ClientError
from kbroker.client.handlers import ProducerHandler
from kbroker.client.network.connecting import Address
from kbroker.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker._core.client.producer.accumulator import Accumulator
    from kbroker.client.producer.producer import Producer

log = logging.getLogger("kbroker.client")

AUDIT_TOPIC = "_kbroker_audit"
HOUR_MS = 3_600_000
WINDOW_MS = 600_000
MOST_TOTALS = 100_000
"""The most (topic, window) pairs that are remembered. With more, counting starts again under another `source`."""


class AuditHandler(ProducerHandler):
    """Counts the records that are put into the queue of one producer: `Producer(..., handlers=[AuditHandler()])`.

    A record belongs to the window of its timestamp. Counts are published when a window is over, and when the producer
    closes. The audit topic is created if it does not exist. A failure is logged, and the counts are published with the
    next window.
    """

    def __init__(self, topic: str = AUDIT_TOPIC, tier: str = "producer", window_ms: int = WINDOW_MS):
        """Raises ValueError when an hour is not a whole number of windows."""
        if window_ms <= 0 or HOUR_MS % window_ms:
            raise ValueError(f"window_ms={window_ms}: an hour has to be a number of windows")
        self.topic = topic
        self.tier = tier
        self.window_ms = window_ms
        self._source = uuid.uuid4().hex
        self._totals: dict[tuple[str, int], tuple[int, int]] = {}
        self._changed: set[tuple[str, int]] = set()
        self._accumulator: Accumulator | None = None
        self._options: dict[str, Any] = {}
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def started(self, producer: Producer) -> None:
        if self._thread is not None:
            raise ValueError("an AuditHandler is for one producer")
        self._options = {
            **{name: producer.options[name] for name in NETWORK if producer.options.is_given(name)},
            "bootstrap.servers": ",".join(str(Address(*each)) for each in producer.options["bootstrap.servers"]),
            "client.id": f"{producer.options['client.id']}-audit",
        }
        self._accumulator = producer.accumulator
        self._accumulator.count_windows(self.window_ms)
        self._thread = threading.Thread(target=self._run, name="kbroker-audit", daemon=True)
        self._thread.start()

    def closing(self) -> None:
        if self._thread is not None:
            self._is_over.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._is_over.wait((self.window_ms - time.time() * 1000 % self.window_ms) / 1000 + 0.001)
            self._collect()
            if self._changed:
                try:
                    self._publish()
                except (ClientError, ValueError) as error:
                    log.warning("the audit of %s was not published: %s", self._options["client.id"], error)
        self._accumulator = None

    def _collect(self) -> None:
        assert self._accumulator is not None
        for topic, start_ms, records, size in self._accumulator.take_windows():
            before = self._totals.get((topic, start_ms), (0, 0))
            self._totals[(topic, start_ms)] = (before[0] + records, before[1] + size)
            self._changed.add((topic, start_ms))

    def _publish(self) -> None:
        from kbroker.client.producer.producer import Producer

        make_audit_topic(self._options, self.topic)
        with Producer(self._options) as producer:
            sent = []
            for topic, start_ms in sorted(self._changed):
                records, size = self._totals[(topic, start_ms)]
                key, value = audit_record(topic, self.tier, self._source, self.window_ms, start_ms, records, size)
                sent.append(producer.send(self.topic, value, key=key))
            for each in sent:
                each.result()
        self._changed.clear()
        if len(self._totals) > MOST_TOTALS:
            self._totals.clear()
            self._source = uuid.uuid4().hex


def audit_record(
    topic: str, tier: str, source: str, window_ms: int, start_ms: int, records: int, size: int
) -> tuple[bytes, bytes]:
    """Return key and value of a record of the audit topic."""
    key = {"topic": topic, "tier": tier, "source": source, "window_ms": window_ms, "start_ms": start_ms}
    return json.dumps(key).encode(), json.dumps({**key, "records": records, "bytes": size}).encode()


def make_audit_topic(options: dict[str, Any], topic: str) -> None:
    """Create the audit topic, compacted, if it does not exist."""
    with AdminClient(options) as admin:
        if topic in admin.list_topics(internal=True):
            return
        try:
            admin.create_topic(topic, 1, configs={"cleanup.policy": "compact"})
        except BrokerError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
