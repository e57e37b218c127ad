"""What a client knows of a cluster: against kbroker, and against brokers that come, go and contradict themselves."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from kbroker._core.probes.client import ProbeEngine
from kbroker.client.errors import BrokerError, ConnectionFailed, TimedOut
from kbroker.client.network.backoff import Backoff
from kbroker.client.network.cluster import COORDINATOR, NEVER_REACHED, TRANSACTION, Cluster
from kbroker.client.network.cluster_view import ClusterView, Node
from kbroker.client.network.connection import Connection
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.headers import encode_request
from tests.kit.brokers import answers
from tests.kit.brokers.scripted import Asked, Peer, ScriptedBroker
from tests.kit.brokers.whole import WholeBroker

T = TypeVar("T")
MakeCluster = Callable[..., Cluster]
SECONDS = 30.0
Response = M.MetadataResponse


def run(cluster: Cluster, coroutine: Coroutine[Any, Any, T]) -> T:
    return cluster.network.thread.call(coroutine, 30)


class OneBroker:
    """A scripted cluster of one broker: metadata of `topics` (name -> error code), everything else as `answer` says."""

    def __init__(self, answer: Callable[[Peer, Asked], None] | None = None):
        self.topics: dict[str, int] = {}
        self.asked: list[Asked] = []
        self.metadata_of: list[list[str] | None] = []
        self.answer = answer
        self.closes: set[int] = set()
        self.broker = ScriptedBroker(self.script)
        self.advertised_port = self.broker.port

    def script(self, peer: Peer) -> None:
        for asked in peer.requests():
            self.asked.append(asked)
            if asked.api_key in self.closes:
                return
            if asked.api_key == ApiKey.METADATA:
                peer.respond(asked, self.metadata(asked.message))
            else:
                assert self.answer is not None
                self.answer(peer, asked)

    def metadata(self, message: Any) -> M.Message:
        names = None if message.topics is None else [topic.name for topic in message.topics]
        self.metadata_of.append(names)
        topics = []
        for name in self.topics if names is None else names:
            code = self.topics.get(name, 3)
            topics.append(answers.topic(name, [] if code else [5], leader_epoch=1, error_code=code))
        return answers.metadata({5: self.advertised_port}, topics)


def test_a_topic_is_waited_for_until_it_has_leaders(cluster_of: MakeCluster, broker: WholeBroker) -> None:
    cluster = cluster_of(broker.port)
    with pytest.raises(BrokerError, match="topic 'later'") as raised:
        run(cluster, cluster.topic("later", timeout_s=1))
    assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "create the topic" in str(raised.value)
    topic = run(cluster, cluster.topic("later", timeout_s=20, allow_auto_creation=True))
    assert topic.partitions[0].leader_id == 1
    assert cluster.leader("later", 0) == topic.partitions[0]
    assert cluster.leader("later", 99) is None


def test_coordinators_are_found_and_remembered(cluster_of: MakeCluster, broker: WholeBroker) -> None:
    cluster = cluster_of(broker.port)
    assert run(cluster, cluster.retried(lambda: cluster.coordinator("g"))) == 1
    assert run(cluster, cluster.retried(lambda: cluster.coordinator("t", TRANSACTION))) == 1

    async def heartbeat() -> Any:
        return await cluster.call_coordinator(M.HeartbeatRequest(group_id="g", member_id="m"), "g")

    assert run(cluster, heartbeat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    connection = run(cluster, cluster.connection(1, COORDINATOR))
    assert connection is not run(cluster, cluster.connection(1))
    assert connection is run(cluster, cluster.connection(1, COORDINATOR))


def test_only_topics_of_interest_are_asked_for(cluster_of: MakeCluster) -> None:
    one = OneBroker()
    one.topics = {"a": 0, "b": 0, "c": 0}
    with one.broker:
        cluster = cluster_of(one.broker.port)
        heard: list[ClusterView] = []
        cluster.on_view.append(heard.append)
        assert cluster.add_topics(["a", "b"])
        view = run(cluster, cluster.refresh())
        assert sorted(view.topics) == ["a", "b"]
        assert heard == [view]
        assert not cluster.add_topics(["b"])
        cluster.remove_topics(["a", "b"])
        run(cluster, cluster.refresh())
        cluster.add_everything()
        assert sorted(run(cluster, cluster.refresh()).topics) == ["a", "b", "c"]
        assert [sorted(names) if names is not None else None for names in one.metadata_of] == [["a", "b"], ["b"], None]


def test_callers_that_wait_at_once_share_a_refresh(cluster_of: MakeCluster) -> None:
    one = OneBroker()
    with one.broker:
        cluster = cluster_of(one.broker.port)

        async def several() -> None:
            await asyncio.gather(*(cluster.refresh() for _ in range(20)))

        run(cluster, several())
        assert len(one.metadata_of) <= 2


def test_metadata_that_is_old_is_asked_for_again(cluster_of: MakeCluster) -> None:
    one = OneBroker()
    enough = threading.Event()

    def count(_: ClusterView) -> None:
        if len(one.metadata_of) >= 4:
            enough.set()

    with one.broker:
        cluster = cluster_of(one.broker.port, metadata_max_age_ms=10)
        cluster.on_view.append(count)
        run(cluster, cluster.refresh())
        assert enough.wait(20)


def test_the_bootstrap_servers_are_asked_again_when_every_broker_is_lost(cluster_of: MakeCluster) -> None:
    first, second = OneBroker(), OneBroker()
    with second.broker:
        with first.broker:
            servers = f"127.0.0.1:{first.broker.port},127.0.0.1:{second.broker.port}"
            cluster = cluster_of(bootstrap_servers=servers, reconnect_backoff_ms=1, reconnect_backoff_max_ms=1)
            run(cluster, cluster.refresh())
            assert run(cluster, cluster.connection(5)).node_id == 5
        view = run(cluster, cluster.retried(cluster.refresh))
        assert view.nodes[5].port == second.broker.port


def test_nobody_to_connect_to_is_said_with_every_address(cluster_of: MakeCluster) -> None:
    with ScriptedBroker(Peer.wait_for_end) as gone:
        pass
    with ScriptedBroker(Peer.wait_for_end) as gone_too:
        pass
    servers = f"127.0.0.1:{gone.port},127.0.0.1:{gone_too.port}"
    cluster = cluster_of(bootstrap_servers=servers)
    with pytest.raises(ConnectionFailed, match=r"is a broker there, and bootstrap\.servers right\?") as raised:
        run(cluster, cluster.any_connection())
    assert str(gone.port) in str(raised.value)
    assert str(gone_too.port) in str(raised.value)
    without = cluster_of()
    with pytest.raises(ConnectionFailed, match=r"set bootstrap\.servers"):
        run(without, without.any_connection())


def test_the_log_says_when_nobody_has_been_reached_for_some_time(
    cluster_of: MakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for after_s, said in ((3600.0, []), (0.0, [f"127.0.0.1:1: connection refused ({NEVER_REACHED})"])):
        monkeypatch.setattr("kbroker.client.network.cluster.UNREACHED_S", after_s)
        cluster = cluster_of(1)
        for _ in range(3):
            with pytest.raises(ConnectionFailed):
                run(cluster, cluster.any_connection())
        text = "no broker has been reached for 0 s: cannot connect to "
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        ours = [each for each in warnings if "127.0.0.1:1:" in each]  # the clients of other tests may live on
        assert ours == [text + each for each in said]


def test_the_log_says_that_a_coordinator_has_not_been_there_for_some_time(
    cluster_of: MakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE

    def answer(peer: Peer, asked: Asked) -> None:
        found = M.FindCoordinatorResponse.Coordinator(key="g", error_code=code, node_id=5)
        peer.respond(asked, M.FindCoordinatorResponse(coordinators=[found]))

    for after_s, said in ((3600.0, 0), (0.0, 1)):
        monkeypatch.setattr("kbroker.client.network.cluster.UNREACHED_S", after_s)
        with OneBroker(answer).broker as broker:
            cluster = cluster_of(broker.port)
            for _ in range(3):
                with pytest.raises(BrokerError):
                    run(cluster, cluster.coordinator("g"))
        assert caplog.text.count("group 'g': COORDINATOR_NOT_AVAILABLE (a broker begins, or ") == said


def test_the_log_says_once_that_a_broker_is_not_reached_until_it_was(
    cluster_of: MakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    one = OneBroker()
    with one.broker:
        cluster = cluster_of(one.broker.port)
        for port, said in ((1, 1), (one.broker.port, 1), (1, 2)):
            one.advertised_port = port
            run(cluster, cluster.refresh())
            for _ in range(3):
                run(cluster, cluster._satisfy(5))
            if port != 1:
                run(cluster, cluster.connection(5)).close("for this test")
            assert caplog.text.count("broker 5 is not reached where it is advertised") == said


def test_a_broker_that_accepts_and_says_nothing_is_named(cluster_of: MakeCluster) -> None:
    one = OneBroker()
    with one.broker, socket.create_server(("127.0.0.1", 0)) as silent:
        one.advertised_port = silent.getsockname()[1]
        cluster = cluster_of(one.broker.port, request_timeout_ms=300)
        run(cluster, cluster.refresh())
        with pytest.raises(TimedOut, match=r"broker 5 is not reached where it is advertised: .* did not answer"):
            run(cluster, cluster.connection(5))


def test_attempts_are_made_until_their_time_is_over(cluster_of: MakeCluster) -> None:
    cluster = cluster_of(retry_backoff_ms=1, retry_backoff_max_ms=5, default_api_timeout_ms=100)
    attempts = 0

    async def refused() -> None:
        nonlocal attempts
        attempts += 1
        raise BrokerError("no", code=ErrorCode.NOT_COORDINATOR if attempts < 5 else ErrorCode.INVALID_GROUP_ID)

    with pytest.raises(BrokerError) as raised:
        run(cluster, cluster.retried(refused))
    assert (raised.value.code, attempts) == (ErrorCode.INVALID_GROUP_ID, 5)

    async def always() -> None:
        raise BrokerError("never", code=ErrorCode.INVALID_GROUP_ID)

    started = time.monotonic()
    with pytest.raises(BrokerError, match="never"):
        run(cluster, cluster.retried(always, also=[ErrorCode.INVALID_GROUP_ID]))
    assert time.monotonic() - started >= 0.05

    async def silent() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimedOut, match=r"not done within 0\.1 s"):
        run(cluster, cluster.retried(silent))

    refusals = [BrokerError("gone", code=ErrorCode.NOT_COORDINATOR)]

    async def refused_once() -> None:
        if refusals:
            raise refusals.pop()
        await silent()

    with pytest.raises(TimedOut, match="the last attempt: gone") as late:
        run(cluster, cluster.retried(refused_once))
    assert isinstance(late.value.__cause__, BrokerError)


def test_waits_double_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 1.0)
    waits = [backoff.next_s() for _ in range(2000)]
    for expected, wait in zip([0.1, 0.2, 0.4, 0.8, *[1.0] * 1996], waits, strict=True):
        assert 0.8 * expected <= wait <= 1.2 * expected
    assert max(waits) - min(waits[10:]) > 0.3


def test_a_broker_that_refuses_connections_is_not_asked_without_pause(cluster_of: MakeCluster) -> None:
    with ScriptedBroker(Peer.request) as broker:  # closes at the first request
        cluster = cluster_of(broker.port, reconnect_backoff_ms=40, reconnect_backoff_max_ms=40, retry_backoff_ms=0)
        with pytest.raises((ConnectionFailed, TimedOut)):
            run(cluster, cluster.retried(cluster.any_connection, timeout_s=1))
        assert 2 <= broker.accepted <= 1 / (0.04 * 0.8) + 2


def test_an_engine_gets_the_connection_it_wants(cluster_of: MakeCluster) -> None:
    frame = encode_request(ApiKey.METADATA, 12, 0, "engine", M.MetadataRequest(topics=[]))
    one = OneBroker()
    with one.broker:
        cluster = cluster_of(one.broker.port)
        engine = ProbeEngine()
        answered = threading.Event()
        engine.on_told = answered.set

        async def add() -> None:
            cluster.network.thread.pump.add(engine)

        run(cluster, add())
        engine.send(5, ApiKey.METADATA, 12, frame, 20_000)
        assert answered.wait(20)
        ((_, body, reason),) = engine.take()
        assert reason is None
        assert body is not None
        assert Response.decode(body, 12).controller_id == 5


def test_an_engine_that_wants_who_is_not_there_asks_until_he_is(cluster_of: MakeCluster) -> None:
    one = OneBroker()
    with one.broker:
        cluster = cluster_of(one.broker.port, reconnect_backoff_ms=1, retry_backoff_ms=1)
        engine = ProbeEngine()

        async def add() -> None:
            cluster.network.thread.pump.add(engine)

        run(cluster, add())
        frame = encode_request(ApiKey.METADATA, 12, 0, "engine", M.MetadataRequest(topics=[]))
        engine.send(77, ApiKey.METADATA, 12, frame, 20_000)
        deadline = time.monotonic() + 20
        while len(one.metadata_of) < 3:
            assert time.monotonic() < deadline
            run(cluster, cluster.any_connection())


def partition(view: ClusterView, topic: str = "t") -> Any:
    found = view.partition(topic, 0)
    assert found is not None
    return found


def answer_of(leader_id: int, leader_epoch: int, topic_id: bytes = b"1" * 16, nodes: tuple[int, ...] = (1, 2)) -> Any:
    found = Response.MetadataResponsePartition(partition_index=0, leader_id=leader_id, leader_epoch=leader_epoch)
    topic = Response.MetadataResponseTopic(name="t", topic_id=topic_id, partitions=[found])
    brokers = [Response.MetadataResponseBroker(node_id=node, host="h", port=node) for node in nodes]
    return Response(brokers=brokers, topics=[topic])


def test_an_older_leader_does_not_replace_a_newer_one() -> None:
    asked = frozenset(["t"])
    view = ClusterView().with_answer(answer_of(1, 5), asked)
    assert partition(view.with_answer(answer_of(2, 4), asked)).leader_id == 1
    assert partition(view.with_answer(answer_of(2, 6), asked)).leader_id == 2
    assert partition(view.with_answer(answer_of(2, -1), asked)).leader_id == 2
    assert partition(view.with_answer(answer_of(2, 0, b"2" * 16), asked)).leader_id == 2


def test_a_response_that_names_a_newer_leader_is_believed() -> None:
    view = ClusterView().with_answer(answer_of(1, 5), frozenset(["t"]))
    assert view.with_leader("t", 0, 2, 5, []) is view
    assert view.with_leader("t", 0, 9, 6, []) is view
    assert view.with_leader("u", 0, 2, 6, []) is view
    moved = view.with_leader("t", 0, 9, 6, [Node(9, "x", 1)])
    assert (partition(moved).leader_id, moved.nodes[9].host) == (9, "x")
    assert partition(view).leader_id == 1


def test_a_broker_that_knows_no_brokers_takes_none_away() -> None:
    view = ClusterView().with_answer(answer_of(1, 5), frozenset(["t"]))
    assert view.with_answer(answer_of(1, 5, nodes=()), frozenset(["t"])).nodes == view.nodes


def test_topics_that_are_gone_are_gone() -> None:
    view = ClusterView().with_answer(answer_of(1, 5), frozenset(["t"]))
    assert view.with_answer(Response(), frozenset(["t"])).topics == {}
    assert view.with_answer(Response(), frozenset(["u"])).topics == view.topics
    assert view.with_answer(Response(), None).topics == {}


def test_a_connection_that_carries_nothing_is_closed_and_made_again(
    broker: WholeBroker, cluster_of: MakeCluster
) -> None:
    cluster = cluster_of(broker.port, connections_max_idle_ms=40)
    thread = cluster.network.thread
    closed: asyncio.Queue[str] = asyncio.Queue()

    async def use() -> tuple[Connection, str]:
        connection = await cluster.any_connection()
        kept = connection.on_closed
        assert kept is not None

        def heard(each: Connection, reason: str) -> None:
            kept(each, reason)
            closed.put_nowait(reason)

        connection.on_closed = heard
        return connection, await closed.get()

    first, reason = thread.call(use(), SECONDS)
    assert reason == "it has carried nothing for 0.04 s"
    second, _ = thread.call(use(), SECONDS)
    assert second is not first


def test_a_connection_that_waits_for_an_answer_is_not_idle(cluster_of: MakeCluster) -> None:
    asked = threading.Event()

    def script(peer: Peer) -> None:
        metadata = peer.serve_versions()
        asked.wait(SECONDS)
        peer.respond(metadata, M.MetadataResponse())
        peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        cluster = cluster_of(broker.port, connections_max_idle_ms=10)
        thread = cluster.network.thread

        async def wait_longer() -> bool:
            connection = await cluster.any_connection()
            answer = asyncio.ensure_future(connection.call(M.MetadataRequest(topics=[])))
            await asyncio.wait([answer], timeout=0.2)
            asked.set()
            await answer
            return connection.is_closed

        assert not thread.call(wait_longer(), SECONDS)
