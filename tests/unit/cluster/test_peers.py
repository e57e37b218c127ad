"""Requests between brokers, over real sockets, to brokers that answer as a test tells them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from kbroker.cluster.peers import NetworkPeers, PeerError, PeerNetwork
from kbroker.model import Endpoint
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.testing.reserved_port import ReservedPort
from tests.kit.brokers.scripted import Peer, ScriptedBroker

TIMEOUT_MS = 20_000
WAIT_S = 20
NODE = 5


@pytest.fixture
def network() -> Iterator[PeerNetwork]:
    made = PeerNetwork(1)
    yield made
    made.close()


@pytest.fixture
def peers(network: PeerNetwork) -> NetworkPeers:
    return network.peers()


@pytest.fixture
def reserved() -> Iterator[ReservedPort]:
    made = ReservedPort("127.0.0.1")
    yield made
    made.release()


def endpoint(port: int) -> Endpoint:
    return Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", port)


class Answers:
    """The answers of one test, in the order in which they came."""

    def __init__(self) -> None:
        self._queue: queue.Queue[M.Message | PeerError] = queue.Queue()

    def __call__(self, answer: M.Message | PeerError) -> None:
        self._queue.put(answer)

    def next(self) -> M.Message | PeerError:
        return self._queue.get(timeout=WAIT_S)

    def next_error(self) -> PeerError:
        answer = self.next()
        assert isinstance(answer, PeerError), answer
        return answer


def request(broker_id: int) -> M.Message:
    return M.AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=1)


def echoes(peer: Peer) -> None:
    for asked in peer.requests():
        found = asked.message
        assert isinstance(found, M.AllocateProducerIdsRequest)
        peer.respond(asked, M.AllocateProducerIdsResponse(producer_id_start=found.broker_id, producer_id_len=1))


def test_requests_are_sent_and_answered_in_the_order_of_the_calls(peers: NetworkPeers) -> None:
    answers = Answers()
    with ScriptedBroker(echoes) as broker:
        peers.set_brokers({NODE: endpoint(broker.port)})
        for number in range(200):
            peers.send(NODE, request(number), 0, answers, timeout_ms=TIMEOUT_MS)
        got = [answers.next() for _ in range(200)]
    assert [each.producer_id_start for each in got if isinstance(each, M.AllocateProducerIdsResponse)] == [*range(200)]


def test_the_version_is_the_highest_that_both_know(peers: NetworkPeers) -> None:
    asked_versions: list[int] = []

    def script(peer: Peer) -> None:
        for asked in peer.requests({ApiKey.ALTER_PARTITION: (0, 2)}):
            asked_versions.append(asked.version)
            peer.respond(asked, M.AlterPartitionResponse())

    answers: queue.Queue[tuple[M.Message | PeerError, int]] = queue.Queue()
    with ScriptedBroker(script) as broker:
        peers.set_brokers({NODE: endpoint(broker.port)})
        assert peers.served(NODE, ApiKey.ALTER_PARTITION) == -1
        peers.ask(
            NODE, lambda version: M.AlterPartitionRequest(broker_id=version), ApiKey.ALTER_PARTITION, 3,
            lambda answer, version: answers.put((answer, version)), timeout_ms=TIMEOUT_MS,
        )  # fmt: skip
        answer, version = answers.get(timeout=WAIT_S)
        assert (type(answer), version) == (M.AlterPartitionResponse, 2)
        assert peers.served(NODE, ApiKey.ALTER_PARTITION) == 2
        peers.ask(
            NODE, lambda _: request(1), ApiKey.ALLOCATE_PRODUCER_IDS, 0,
            lambda answer, version: answers.put((answer, version)), timeout_ms=TIMEOUT_MS,
        )  # fmt: skip
        answer, version = answers.get(timeout=WAIT_S)
        assert isinstance(answer, PeerError) and not answer.sent and version == -1
    assert asked_versions == [2]


def test_a_broker_that_nobody_knows_is_an_error_at_once(peers: NetworkPeers) -> None:
    answers = Answers()
    peers.send(NODE, request(1), 0, answers, timeout_ms=TIMEOUT_MS)
    error = answers.next_error()
    assert not error.sent and not error.refused


def test_a_port_that_refuses_is_told_once_until_the_broker_is_reached_again(peers: NetworkPeers) -> None:
    answers = Answers()
    refused: queue.Queue[int] = queue.Queue()
    peers.on_refused(refused.put)
    first = ScriptedBroker(echoes)
    with first:
        peers.set_brokers({NODE: endpoint(first.port)})
        peers.send(NODE, request(1), 0, answers, timeout_ms=TIMEOUT_MS)
        assert isinstance(answers.next(), M.AllocateProducerIdsResponse)
        peers.keep([NODE])
    assert refused.get(timeout=WAIT_S) == NODE, "the connection broke, and the port refuses"
    for _ in range(3):
        peers.send(NODE, request(1), 0, answers, timeout_ms=TIMEOUT_MS)
        error = answers.next_error()
        assert error.refused and not error.sent
    assert refused.empty()


def test_a_broker_that_does_not_listen_yet_is_not_taken_for_gone(peers: NetworkPeers, reserved: ReservedPort) -> None:
    """Apache Kafka registers, and may even be elected, before its port listens."""
    answers = Answers()
    refused: queue.Queue[int] = queue.Queue()
    peers.on_refused(refused.put)
    peers.set_brokers({NODE: endpoint(reserved.port)})
    peers.keep([NODE])
    for _ in range(3):
        peers.send(NODE, request(1), 0, answers, timeout_ms=TIMEOUT_MS)
        assert answers.next_error().refused
    assert refused.empty()
    with ScriptedBroker(echoes, reserved.port):
        peers.send(NODE, request(1), 0, answers, timeout_ms=TIMEOUT_MS)
        while isinstance(answers.next(), PeerError):
            peers.send(NODE, request(1), 0, answers, timeout_ms=TIMEOUT_MS)
    assert refused.get(timeout=WAIT_S) == NODE, "it was reached, and refuses now"


def test_a_port_that_was_never_reached_and_refuses_for_long_is_told(
    peers: NetworkPeers, reserved: ReservedPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.cluster.peers.STARTING_S", 0.2)
    refused: queue.Queue[int] = queue.Queue()
    peers.on_refused(refused.put)
    peers.set_brokers({NODE: endpoint(reserved.port)})
    peers.keep([NODE])
    assert refused.get(timeout=WAIT_S) == NODE


def test_a_request_without_an_answer_in_time_closes_the_connection(peers: NetworkPeers) -> None:
    answers = Answers()
    ended = threading.Event()
    unanswered = 9

    def script(peer: Peer) -> None:
        for asked in peer.requests():
            found = asked.message
            assert isinstance(found, M.AllocateProducerIdsRequest)
            if found.broker_id == unanswered:
                peer.wait_for_end()
                ended.set()
                return
            peer.respond(asked, M.AllocateProducerIdsResponse(producer_id_start=found.broker_id, producer_id_len=1))

    with ScriptedBroker(script) as broker:
        peers.set_brokers({NODE: endpoint(broker.port)})
        peers.send(NODE, request(1), 0, answers, timeout_ms=TIMEOUT_MS)
        assert isinstance(answers.next(), M.AllocateProducerIdsResponse), "the time to connect is not counted"
        peers.send(NODE, request(unanswered), 0, answers, timeout_ms=500)
        assert answers.next_error().sent
        assert ended.wait(WAIT_S)
        peers.send(NODE, request(2), 0, answers, timeout_ms=TIMEOUT_MS)
        assert isinstance(answers.next(), M.AllocateProducerIdsResponse)


def test_what_waits_for_a_broker_that_moves_or_goes_ends(peers: NetworkPeers) -> None:
    answers = Answers()
    asked = threading.Event()

    def script(peer: Peer) -> None:
        peer.serve_versions()
        asked.set()
        peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        peers.set_brokers({NODE: endpoint(broker.port)})
        peers.send(NODE, request(1), 0, answers, timeout_ms=TIMEOUT_MS)
        assert asked.wait(WAIT_S)
        peers.set_brokers({})
        assert answers.next_error().sent
        peers.send(NODE, request(2), 0, answers, timeout_ms=TIMEOUT_MS)
        assert not answers.next_error().sent


def test_each_peers_has_connections_of_its_own(network: PeerNetwork) -> None:
    """A request that is not answered stands in front of no request of another purpose."""
    answers = Answers()

    def script(peer: Peer) -> None:
        for asked in peer.requests():
            found = asked.message
            assert isinstance(found, M.AllocateProducerIdsRequest)
            if found.broker_id == 0:
                peer.wait_for_end()
            peer.respond(asked, M.AllocateProducerIdsResponse(producer_id_start=found.broker_id))

    slow, fast = network.peers(), network.peers()
    with ScriptedBroker(script) as broker:
        for each in (slow, fast):
            each.set_brokers({NODE: endpoint(broker.port)})
        slow.send(NODE, request(0), 0, lambda _: None, timeout_ms=TIMEOUT_MS)
        fast.send(NODE, request(7), 0, answers, timeout_ms=TIMEOUT_MS)
        answer = answers.next()
        assert isinstance(answer, M.AllocateProducerIdsResponse) and answer.producer_id_start == 7
        network.close()


def test_closing_answers_everything(network: PeerNetwork) -> None:
    answers = Answers()
    peers = network.peers()

    def script(peer: Peer) -> None:
        peer.serve_versions()
        peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        peers.set_brokers({NODE: endpoint(broker.port)})
        for _ in range(5):
            peers.send(NODE, request(0), 0, answers, timeout_ms=TIMEOUT_MS)
        network.close()
        for _ in range(5):
            answers.next_error()
        peers.send(NODE, request(0), 0, answers, timeout_ms=TIMEOUT_MS)
        answers.next_error()


def test_a_request_is_answered_that_was_begun_in_the_same_breath_as_the_end(
    network: PeerNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task of such a request is cancelled before its first step."""
    answers = Answers()
    peers = network.peers()

    async def begin_and_end() -> None:
        peers.send(NODE, request(1), 0, answers, timeout_ms=TIMEOUT_MS)
        peers.set_brokers({})

    with ScriptedBroker(echoes) as broker:
        peers.set_brokers({NODE: endpoint(broker.port)})
        peers.send(NODE, request(0), 0, answers, timeout_ms=TIMEOUT_MS)
        assert not isinstance(answers.next(), PeerError)
        monkeypatch.setattr(network._thread, "call_soon", lambda call, *arguments: call(*arguments) or True)
        network._thread.call(begin_and_end(), WAIT_S)
        assert not answers.next_error().refused


def test_an_address_that_is_told_after_the_end_makes_no_connection(network: PeerNetwork) -> None:
    """A connection that was begun while the thread ends was never finished: "coroutine was never awaited"."""
    peers = network.peers()
    told = threading.Event()

    def tell() -> None:
        peers.end()
        peers.set_brokers({NODE: endpoint(1)})
        peers.keep([NODE])
        network._thread.call_soon(told.set)

    network._thread.call_soon(tell)
    assert told.wait(WAIT_S)
    assert not peers._nodes
