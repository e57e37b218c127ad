"""Reads an audit topic, which says how many records there are, and adds what a load has loaded."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable

from kbroker.client import AdminClient, Consumer, Producer, TopicPartition
from kbroker.client.config.consumer import CONSUMER
from kbroker.client.config.network import NETWORK
from kbroker.client.config.producer import PRODUCER
from kbroker.client.errors import ClientError
from kbroker.client.producer.audit import HOUR_MS, audit_record, make_audit_topic
from kbroker.spark.loader.commits.commit import Commit, LakeFile
from kbroker.spark.loader.errors import LoadFailed
from kbroker.spark.loader.hours import UNDATED, hour_of
from kbroker.spark.loader.settings import Settings
from kbroker.spark.options.kafka_options import client_options

log = logging.getLogger("kbroker.spark")

LAKE = "lake"  #: the tier of a load

Audited = dict[tuple[str, str, int], int]
"""Records by topic, tier and hour."""


def read_audit(settings: Settings, audit_topic: str, lake_id: str = "", number: int = 0) -> Audited:
    """Return what an audit says: of the lake `lake_id` up to commit `number`, and of all other tiers.

    Raises LoadFailed when the topic does not exist, or is not an audit topic.
    """
    options = {
        **client_options(settings.client, CONSUMER),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "allow.auto.create.topics": False,
    }
    with AdminClient(client_options(settings.client, NETWORK)) as admin:
        if audit_topic not in admin.list_topics(internal=True):
            raise LoadFailed(
                f"there is no topic {audit_topic} to compare with: a producer's AuditHandler makes it when its first "
                "window is over"
            )
        (described,) = admin.describe_topics([audit_topic]).values()
    last: dict[bytes | None, tuple[tuple[str, str, int], int]] = {}
    with Consumer(options) as consumer:
        places = [TopicPartition(audit_topic, each.partition) for each in described.partitions]
        starts, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
        for place in places:
            for records in consumer.read_range(*place, starts[place], ends[place], settings.poll_timeout_s):
                for record in records:
                    try:
                        found = json.loads(record.value or b"")
                        what = (found["topic"], found["tier"], hour_of(found["start_ms"]))
                        count = int(found["records"])
                        if found["tier"] == LAKE:
                            lake, _, commit = found["source"].rpartition("/")
                            if lake != lake_id or int(commit) > number:
                                continue
                        last[record.key] = (what, count)
                    except (ValueError, TypeError, KeyError, AttributeError):
                        where = f"{place}, offset {record.offset}"
                        raise LoadFailed(f"{where} is no record of an audit") from None
    found_in_all: Counter[tuple[str, str, int]] = Counter()
    for what, count in last.values():
        found_in_all[what] += count
    return dict(found_in_all)


def publish_audit(
    settings: Settings, audit_topic: str, lake_id: str, commit: Commit, removed: Iterable[LakeFile]
) -> None:
    """Add the rows of a commit to the audit, less those of the files that it replaces.

    It does no harm to do this twice for a commit. An error of the client is only logged.
    """
    rows: Counter[tuple[str, int]] = Counter()
    for sign, files in ((1, commit.files), (-1, removed)):
        for file in files:
            rows[(file.topic, file.hour)] += sign * (file.rows - file.undated)
            rows[(file.topic, UNDATED)] += sign * file.undated
    if not any(rows.values()):
        return
    try:
        make_audit_topic(client_options(settings.client, NETWORK), audit_topic)
        with Producer(client_options(settings.client, PRODUCER)) as producer:
            source = f"{lake_id}/{commit.number}"
            records = [
                audit_record(topic, LAKE, source, HOUR_MS, hour * HOUR_MS, count, 0)
                for (topic, hour), count in sorted(rows.items())
                if count
            ]
            producer.send_many(audit_topic, [value for _, value in records], [key for key, _ in records]).result()
    except ClientError as error:
        log.warning("commit %d is not in the audit: %s", commit.number, error)
