"""The consumer connector: the interface of Kafka 0.8's high-level consumer."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
import warnings
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from kbroker.client.config.connector import CONNECTOR
from kbroker.client.config.parsing import parse_options
from kbroker.client.connector.group_nodes import GroupNodes
from kbroker.client.connector.listener import ConsumerRebalanceListener
from kbroker.client.connector.membership import Member
from kbroker.client.connector.offsets import OffsetStorage
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
from kbroker.client.network.cluster import begin
from kbroker.client.network.thread import ClientThread
from kbroker.client.zookeeper.discovery import Discovery
from kbroker.client.zookeeper.session import Session
from kbroker.model import TopicPartition

if TYPE_CHECKING:
    from kbroker.client.config.option_types import ConnectorOptions

SHUTDOWN_TIMEOUT_S = 10.0


class ConsumerConnector:
    """A member of a consumer group that agrees through ZooKeeper; consumers of Kafka 0.8 may be in the same group.

    Options are keywords, `ConsumerConnector(zookeeper_connect="localhost:2181", group_id="g")`, or a mapping with
    Kafka's names. The connector is a context manager. Its methods may be called from any thread; each stream is read
    by one thread. The connector is a member from the creation of its streams until it is shut down or the process ends.
    A connector that is collected together with its streams leaves the group too, without a commit, and with a
    ResourceWarning.

    The constructor raises TypeError for an option that does not exist, ValueError for a value that is not allowed or a
    missing zookeeper.connect or group.id, and ConnectionFailed when ZooKeeper is not reached.
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
        self._streams: list[MessageStream] = []
        self._session = Session(options)
        try:
            discovery = Discovery(options, self._session)
            cluster = begin(options)
        except BaseException:
            self._session.close()
            raise
        self._thread = thread = cluster.network.thread
        try:
            discovery.feed(cluster)
            engine = fetch_engine(options)

            async def start() -> Fetching:
                thread.pump.add(engine)
                return Fetching(engine, cluster)

            fetching = thread.call(start())
        except BaseException:
            self._session.close()
            thread.stop()
            raise

        def assign(wanted: Mapping[TopicPartition, int]) -> None:
            thread.call(fetching.assign(wanted))

        self._feed = Feed(engine, thread.check)
        nodes = GroupNodes(self._session, options["group.id"], self.consumer_id)
        storage = OffsetStorage(options, nodes, cluster)
        self._member = Member(options, self._session, nodes, self._feed, storage, assign)
        at_exit = weakref.WeakMethod(self.shutdown)
        thread.at_exit = lambda timeout_s: (shutdown := at_exit()) and shutdown(timeout_s)

    def set_consumer_rebalance_listener(self, listener: ConsumerRebalanceListener) -> None:
        """Set the listener that is told of rebalances.

        Raises UsageError when the streams are created already, and ClientClosed when the connector is shut down.
        """
        self._check()
        if self._has_streams:
            raise UsageError("its streams are made already", hint="set the listener before")
        self._member.listener = listener

    # --- streams --------------------------------------------------------------------------------------------

    def create_message_streams(self, counts: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """Join the group, and return streams of records by topic. A connector creates its streams once.

        `counts`: how many streams each topic gets; they share the partitions that this member gets of the topic. A
        topic need not exist yet. Returns when the member has its partitions.

        Raises ConsumerRebalanceFailed when the group does not agree, ClientError when another consumer has this
        consumer.id, UsageError when the streams are created already, and ValueError for a wrong name or count. After an
        error in joining, the connector is shut down.
        """
        if not counts:
            raise ValueError("no topics")
        for topic, count in counts.items():
            _check_count(count, f"topic {topic!r}")
            if not isinstance(topic, str) or not topic or "/" in topic:
                raise ValueError(f"{topic!r} is no topic's name")
        made = {topic: [self._new_stream() for _ in range(count)] for topic, count in counts.items()}
        found: weakref.WeakValueDictionary[tuple[str, int], MessageStream] = weakref.WeakValueDictionary()
        for topic, streams in made.items():
            found.update({(topic, number): stream for number, stream in enumerate(streams)})
        self._join(Subscription(STATIC, dict(counts)), lambda topic, number: found.get((topic, number)))
        return made

    def create_message_streams_by_filter(
        self, *, white_list: str | None = None, black_list: str | None = None, count: int = 1
    ) -> list[MessageStream]:
        """Join the group, and return `count` streams of records from all topics that a filter lets through.

        The topics are those whose whole name matches the regular expression `white_list`, or does not match
        `black_list`; topics that are created later count too. A comma in the expression stands for `|`. Raises
        ValueError unless exactly one of both is given, and else what `create_message_streams` raises.
        """
        given = {WHITE_LIST: white_list, BLACK_LIST: black_list}
        chosen = [(pattern, filter_of(text)) for pattern, text in given.items() if text is not None]
        if len(chosen) != 1:
            raise ValueError("either white_list or black_list")
        _check_count(count, "count")
        made = [self._new_stream() for _ in range(count)]
        ((pattern, expression),) = chosen
        found: weakref.WeakValueDictionary[int, MessageStream] = weakref.WeakValueDictionary(dict(enumerate(made)))
        self._join(Subscription(pattern, {expression: count}), lambda _topic, number: found.get(number))
        return made

    def _new_stream(self) -> MessageStream:
        timeout_ms: int = self.options["consumer.timeout.ms"]
        timeout_s = timeout_ms / 1000 if timeout_ms >= 0 else None
        stream = MessageStream(self, self._feed, timeout_s, self.options["queued.max.message.chunks"])
        self._streams.append(stream)
        return stream

    def _join(self, subscription: Subscription, stream_of: Callable[[str, int], MessageStream | None]) -> None:
        self._check()
        if self._has_streams:
            raise UsageError("a connector makes its streams once", hint="make another connector for others")
        self._has_streams = True
        try:
            self._member.join(subscription, stream_of)
        except BaseException:
            self.shutdown()  # without the thread of a member nothing would rebalance with the group
            raise

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that this member owns now, sorted."""
        return self._member.owned

    # --- offsets --------------------------------------------------------------------------------------------

    def commit_offsets(self) -> None:
        """Commit the positions behind all records that the streams have handed out so far.

        A record that its reader has not finished yet counts too. Raises ClientClosed when the connector is shut down.
        """
        self._check()
        self._member.commit()

    # --- the end --------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._thread.check()
        if self._is_shut_down:
            raise ClientClosed("the connector is shut down")

    def shutdown(self, timeout: float = SHUTDOWN_TIMEOUT_S) -> None:
        """End the streams, commit (with auto.commit.enable) and leave the group, within about `timeout` seconds.

        Shutting down twice does nothing, and neither does a child process after a fork. Raises UsageError when called
        by a rebalance listener.
        """
        if self._is_shut_down or self._pid != os.getpid():
            return
        if self._member.is_listening:
            raise UsageError("a rebalance listener cannot shut its connector down", hint="do that on another thread")
        self._is_shut_down = True
        _end(self._member, self._session, self._thread, timeout)

    def __del__(self) -> None:
        member: Member | None = self.__dict__.get("_member")
        if member is None or self._is_shut_down or not self._thread.is_running:
            return
        said = f"a consumer connector ({self.consumer_id}) was not shut down"
        warnings.warn(said, ResourceWarning, stacklevel=2, source=self)
        # The collector may run in any thread, this client's own included. So nothing is waited for here.
        parts = member, self._session, self._thread, SHUTDOWN_TIMEOUT_S
        threading.Thread(target=_end, args=parts, name="kbroker-connector-end", daemon=True).start()

    close = shutdown

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def _end(member: Member, session: Session, thread: ClientThread, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    try:
        member.leave(timeout_s)
    finally:
        session.close()
        thread.at_exit = None
        thread.stop(max(deadline - time.monotonic(), 1.0))


def _made_up_id() -> str:
    """Return a consumer id as Kafka makes them: host name, milliseconds, and eight random hexadecimal digits."""
    return f"{socket.gethostname()}-{int(time.time() * 1000)}-{uuid.uuid4().hex[:8]}"


def _check_count(count: int, what: str) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MOST_STREAMS:
        raise ValueError(f"{what}: {count!r} streams")
