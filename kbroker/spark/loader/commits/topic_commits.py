"""Commits of a lake in an object store, where files can neither be renamed nor created on a condition.

A commit is a record of a topic, written in a transaction. A loader that begins takes over the lake's transactional id,
and the loader that had it before cannot commit any more. The record names an object with the contents of the commit.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from kbroker.client import AdminClient, BrokerError, Consumer, ErrorCode, Producer, ProducerFenced
from kbroker.client.config.consumer import CONSUMER
from kbroker.client.config.network import NETWORK
from kbroker.client.config.producer import PRODUCER
from kbroker.client.errors import ClientError
from kbroker.model import TopicPartition
from kbroker.spark.loader.commits.commit import Commit, decode_commit
from kbroker.spark.loader.commits.commit_files import commit_numbers, commit_path, prepared_path
from kbroker.spark.loader.errors import LakeDamaged, LakeTaken
from kbroker.spark.loader.lake.storage import ObjectStore
from kbroker.spark.loader.settings import Settings
from kbroker.spark.options.kafka_options import ISOLATION, READ_COMMITTED, client_options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)

BEHIND = 64
"""How many offsets at the topic's end are read first. A commit takes two: its record and its marker."""


class TopicCommits:
    """The commits of a lake in an object store. `is_reader`: it only reads, and fences nobody."""

    def __init__(self, storage: ObjectStore, settings: Settings, *, is_reader: bool = False):
        self._storage = storage
        self._client: Mapping[str, Any] = settings.client
        name = f"kbroker-load-{hashlib.sha256(storage.name.encode()).hexdigest()[:24]}"
        self._place = TopicPartition(name, 0)
        self._timeout_s = settings.poll_timeout_s
        self._producer: Producer | None = None
        if is_reader:
            return
        with AdminClient(client_options(self._client, NETWORK)) as admin:
            try:
                admin.create_topic(name, 1, configs={"retention.ms": "-1", "cleanup.policy": "delete"})
            except BrokerError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
        self._producer = Producer({**client_options(self._client, PRODUCER), "transactional.id": name, "acks": "all"})
        try:
            self._producer.init_transactions()
        except BaseException:
            self._producer.close()
            raise

    def last(self) -> Commit | None:
        """Return the last commit. If another loader commits before our next commit, ours fails.

        Raises LakeTaken when the transaction of a newer commit is not decided yet; a reader ignores that one. Raises
        LakeDamaged when the topic has lost commits.
        """
        published = commit_numbers(self._storage)  # listed before the topic is read, which has all of them then
        found = self._last_record()
        if found is None:
            if published:
                raise LakeDamaged(
                    f"{self._storage.name} has {len(published)} commits, and topic {self._place.topic} has lost them: "
                    "it was deleted, or this is another cluster"
                )
            return None
        path = str(json.loads(found)["commit"])
        commit = decode_commit(self._storage.read(path), f"{self._storage.name}/{path}")
        if published[-1:] > [commit.number]:
            raise LakeDamaged(
                f"{self._storage.name} has {published[-1]} commits, and topic {self._place.topic} has lost commits "
                f"after {commit.number}: rows would be loaded twice"
            )
        if published[-1:] != [commit.number]:
            self._storage.write(commit_path(commit.number), commit.encode())
        return commit

    def add(self, commit: Commit) -> None:
        assert self._producer is not None
        path = prepared_path(commit)
        self._storage.write(path, commit.encode())
        record = json.dumps({"lake": self._storage.name, "number": commit.number, "commit": path})
        try:
            with self._producer.transaction():
                self._producer.send(*self._place[:1], record, key="commit", partition=0).result()
        except ClientError as error:
            if not isinstance(error, ProducerFenced) and error.code not in FENCED:
                raise
            raise LakeTaken(
                f"{self._storage.name}: another loader has taken over; what this one has read is given up, and nothing "
                "is lost"
            ) from None
        self._storage.write(commit_path(commit.number), commit.encode())

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()

    def _last_record(self) -> bytes | None:
        options = {
            **client_options(self._client, CONSUMER),
            ISOLATION: READ_COMMITTED,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
        }
        with Consumer(options) as consumer:
            try:
                end = consumer.end_offsets([self._place])[self._place]
                self._check_decided(end)
                first = consumer.beginning_offsets([self._place])[self._place]
            except ClientError as error:
                if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    return None
                raise
            behind = BEHIND
            while True:
                start = max(first, end - behind)
                found = None
                for records in consumer.read_range(*self._place, start, end, self._timeout_s):
                    found = records[len(records) - 1].value
                if found is not None or start == first:
                    return found
                behind *= 8

    def _check_decided(self, end: int) -> None:
        """Raise LakeTaken when the commit topic has records behind `end`, where the decided transactions end.

        They are ours, or those of a loader that has taken over.
        """
        if self._producer is None:
            return
        with AdminClient(client_options(self._client, NETWORK)) as admin:
            if admin.list_offsets([self._place])[self._place].offset > end:
                raise LakeTaken(
                    f"{self._storage.name}: it is not decided yet whether its last commit is one; load again"
                )
