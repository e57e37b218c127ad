"""The consumer connector that users have."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from kbroker.client.cluster import begin
from kbroker.client.config import parse_options
from kbroker.client.connector.membership import Member
from kbroker.client.connector.offsets import OffsetStorage
from kbroker.client.connector.options import CONNECTOR
from kbroker.client.connector.registry import GroupRegistry
from kbroker.client.connector.streams import Feed, MessageStream
from kbroker.client.connector.subscription import (
    BLACK_LIST,
    MOST_STREAMS,
    STATIC,
    WHITE_LIST,
    Subscription,
    filter_of,
)
from kbroker.client.consumer.fetching import Fetching, fetch_engine
from kbroker.client.errors import ClientClosed, UsageError
from kbroker.client.zookeeper.discovery import Discovery
from kbroker.client.zookeeper.session import Session
from kbroker.model import TopicPartition

if TYPE_CHECKING:
    from kbroker.client.option_types import ConnectorOptions

SHUTDOWN_TIMEOUT_S = 10.0


class ConsumerConnector:
    """A member of a group that agrees through a ZooKeeper, as consumers of Kafka 0.8 do, in one group with them.

    `ConsumerConnector(zookeeper_connect="localhost:2181", group_id="g")`, or a mapping of options with Kafka's names.
    A context manager. Methods may be called from any thread, each stream be read by one. It is in its group until it is
    shut down or the process ends. ConnectionFailed when ZooKeeper is not reached.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keywords: Unpack[ConnectorOptions]):
        self.options = options = parse_options(CONNECTOR, config, keywords, "the consumer connector")
        for name in ("zookeeper.connect", "group.id"):
            if not options[name]:
                raise ValueError(f"{name} is needed")
        name = options["consumer.id"] or _made_up_id()
        self.consumer_id = f"{options['group.id']}_{name}"
        self._pid = os.getpid()
        self._has_streams = False
        self._is_shut_down = False
        self._session = Session(options)
        try:
            discovery = Discovery(options, self._session)
            cluster = begin(options)
        except BaseException:
            self._session.close()
            raise
        self._thread = cluster.network.thread
        try:
            discovery.feed(cluster)
            engine = fetch_engine(options)

            async def start() -> Fetching:
                self._thread.pump.add(engine)
                return Fetching(engine, cluster)

            fetching = self._thread.call(start())
        except BaseException:
            self._session.close()
            self._thread.stop()
            raise

        def assign(wanted: Mapping[TopicPartition, int]) -> None:
            self._thread.call(fetching.assign(wanted))

        self._feed = Feed(engine, self._thread.check)
        registry = GroupRegistry(self._session, options["group.id"], self.consumer_id)
        storage = OffsetStorage(options, registry, cluster)
        self._member = Member(options, self._session, registry, self._feed, storage, assign)
        self._thread.at_exit = self.shutdown

    # --- streams --------------------------------------------------------------------------------------------

    def create_message_streams(self, counts: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """So many streams of each topic, which share what this member gets of it. Once for a connector.

        Returns when the member has its share; ConsumerRebalanceFailed when the group does not agree. Topics need not be
        there yet.
        """
        if not counts:
            raise ValueError("no topics")
        for topic, count in counts.items():
            _check_count(count, f"topic {topic!r}")
            if not isinstance(topic, str) or not topic or "/" in topic:
                raise ValueError(f"{topic!r} is no topic's name")
        made = {topic: [self._new_stream() for _ in range(count)] for topic, count in counts.items()}
        self._join(Subscription(STATIC, dict(counts)), lambda topic, number: made[topic][number])
        return made

    def create_message_streams_by_filter(
        self, *, white_list: str | None = None, black_list: str | None = None, count: int = 1
    ) -> list[MessageStream]:
        """So many streams of all topics whose whole name matches `white_list`, or does not match `black_list`, those
        that come later too. Regular expressions; a comma stands for `|`. Once for a connector."""
        given = {WHITE_LIST: white_list, BLACK_LIST: black_list}
        chosen = [(pattern, filter_of(text)) for pattern, text in given.items() if text is not None]
        if len(chosen) != 1:
            raise ValueError("either white_list or black_list")
        _check_count(count, "count")
        made = [self._new_stream() for _ in range(count)]
        ((pattern, expression),) = chosen
        self._join(Subscription(pattern, {expression: count}), lambda _topic, number: made[number])
        return made

    def _new_stream(self) -> MessageStream:
        timeout_ms: int = self.options["consumer.timeout.ms"]
        timeout_s = timeout_ms / 1000 if timeout_ms >= 0 else None
        return MessageStream(self._feed, timeout_s, self.options["queued.max.message.chunks"])

    def _join(self, subscription: Subscription, stream_of: Callable[[str, int], MessageStream]) -> None:
        self._check()
        if self._has_streams:
            raise UsageError("a connector makes its streams once", hint="make another connector for others")
        self._has_streams = True
        try:
            self._member.join(subscription, stream_of)
        except BaseException:
            self.shutdown()  # nobody would keep its part in the group up
            raise

    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member owns now."""
        return self._member.owned

    # --- offsets --------------------------------------------------------------------------------------------

    def commit_offsets(self) -> None:
        """Of all that streams have given so far, the records in their readers' hands too."""
        self._check()
        self._member.commit()

    # --- the end --------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._thread.check()
        if self._is_shut_down:
            raise ClientClosed("the connector is shut down")

    def shutdown(self, timeout: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Streams end, offsets are committed if auto.commit.enable, the group is told. Idempotent; after a fork nothing
        happens in the child."""
        if self._is_shut_down or self._pid != os.getpid():
            return
        self._is_shut_down = True
        deadline = time.monotonic() + timeout
        try:
            self._member.leave(timeout)
        finally:
            self._session.close()
            self._thread.at_exit = None
            self._thread.stop(max(deadline - time.monotonic(), 1.0))

    close = shutdown

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def _made_up_id() -> str:
    """As Kafka makes them: host, time, and eight digits of chance."""
    return f"{socket.gethostname()}-{int(time.time() * 1000)}-{uuid.uuid4().hex[:8]}"


def _check_count(count: int, what: str) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MOST_STREAMS:
        raise ValueError(f"{what}: {count!r} streams")
