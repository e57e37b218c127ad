"""Connections to kbroker, and to brokers that lie, are silent or are none."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.client.errors import (
    AuthenticationFailed,
    BrokerError,
    ClientError,
    ConnectionFailed,
    MalformedAnswer,
    TimedOut,
)
from kbroker.client.network.cluster import Cluster
from kbroker.client.network.connecting import connect
from kbroker.client.network.connection import Connection
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers import answers
from tests.kit.brokers.scripted import Peer, ScriptedBroker
from tests.kit.brokers.whole import WholeBroker

MakeCluster = Callable[..., Cluster]


def connected(cluster: Cluster, port: int, host: str = "127.0.0.1") -> Connection:
    return cluster.network.thread.call(connect(cluster.network, host, port), 30)


def call(cluster: Cluster, connection: Connection, message: M.Message, **how: Any) -> Any:
    return cluster.network.thread.call(connection.call(message, **how), 30)


def failure(cluster_of: MakeCluster, script: Callable[[Peer], None], **options: Any) -> ClientError:
    with ScriptedBroker(script) as broker:
        cluster = cluster_of(**options)
        with pytest.raises(ClientError) as raised:
            connected(cluster, broker.port)
        assert f"127.0.0.1:{broker.port}" in str(raised.value)
        assert cluster.network.thread.connecting == set()
        return raised.value


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_connection_is_negotiated_and_answers(cluster_of: MakeCluster, broker: WholeBroker, host: str) -> None:
    cluster = cluster_of()
    connection = connected(cluster, broker.port, host)
    assert connection.version_of(ApiKey.FETCH) == 12
    answer = call(cluster, connection, M.MetadataRequest(topics=[]))
    assert answer.brokers[0].port == broker.port


def test_a_broker_without_newer_api_versions_is_asked_the_old_way(cluster_of: MakeCluster) -> None:
    asked = []

    def script(peer: Peer) -> None:
        first = peer.request()
        asked.append((first.api_key, first.version))
        peer.answer(first.correlation_id, (35).to_bytes(2) + (0).to_bytes(4))
        second = peer.request()
        asked.append((second.api_key, second.version))
        peer.respond(second, answers.versions({3: (0, 1)}))
        peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        cluster = cluster_of()
        connection = connected(cluster, broker.port)
        assert asked == [(18, 3), (18, 0)]
        assert connection.version_of(ApiKey.METADATA) == 1
        with pytest.raises(BrokerError, match="serves no version of Fetch") as raised:
            connection.version_of(ApiKey.FETCH)
        assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION
        assert not connection.serves(ApiKey.FETCH)


@pytest.mark.parametrize("way", ["closes", "says nothing"])
def test_a_broker_that_cannot_say_what_it_serves_is_taken_for_what_it_is_said_to_be(
    cluster_of: MakeCluster, way: str
) -> None:
    asked: list[tuple[int, int]] = []

    def before_0_10(peer: Peer) -> None:
        request = peer.request()
        asked.append((request.api_key, request.version))
        if request.api_key == ApiKey.API_VERSIONS:
            if way == "closes":
                peer.reset()
            else:
                peer.wait_for_end()
            return
        peer.respond(request, M.MetadataResponse(brokers=[], topics=[]))

    with ScriptedBroker(before_0_10) as broker:
        options = {"socket_connection_setup_timeout_ms": 300, "request_timeout_ms": 300}
        for raised in (ConnectionFailed, TimedOut):
            if (way == "closes") == (raised is ConnectionFailed):
                with pytest.raises(raised, match=r"Kafka before 0\.10 needs broker\.version\.fallback"):
                    connected(cluster_of(**options), broker.port)
        for release, fetch, has_groups in (("0.8.2", (0, 0), False), ("0.9.0", (0, 1), True)):
            asked.clear()
            cluster = cluster_of(**options, broker_version_fallback=release)
            for _ in range(2):
                connection = connected(cluster, broker.port)
                assert connection.served[ApiKey.FETCH] == fetch
                assert call(cluster, connection, M.MetadataRequest(topics=[])).brokers == []
                assert connection.serves(ApiKey.JOIN_GROUP) is has_groups
            # It is asked once.
            assert asked == [(ApiKey.API_VERSIONS, 3)] + [(ApiKey.METADATA, 0)] * 2


def test_a_listener_that_says_nothing_is_left_in_time(cluster_of: MakeCluster) -> None:
    error = failure(cluster_of, Peer.wait_for_end, request_timeout_ms=50)
    assert isinstance(error, TimedOut)
    assert error.retriable
    assert "did not answer ApiVersions within 50 ms" in str(error)


def test_a_listener_that_closes_is_said_to(cluster_of: MakeCluster) -> None:
    error = failure(cluster_of, Peer.request)
    assert isinstance(error, ConnectionFailed)
    assert "closed the connection" in str(error)
    assert "security.protocol=PLAINTEXT" in error.hint


def test_a_tls_listener_is_told_by_its_alert(cluster_of: MakeCluster) -> None:
    def alert(peer: Peer) -> None:
        peer.request()
        peer.socket.sendall(b"\x15\x03\x03\x00\x02\x02\x50")
        peer.wait_for_end()

    error = failure(cluster_of, alert)
    assert isinstance(error, ConnectionFailed)
    assert "it answers as a TLS listener does" in str(error) and "security.protocol=PLAINTEXT" in error.hint


def test_a_port_where_nobody_listens_is_said_to_refuse(cluster_of: MakeCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionFailed, match=f"cannot connect to 127.0.0.1:{port}: connection refused"):
        connected(cluster_of(), port)


def test_a_name_that_is_none_is_said_to_be(cluster_of: MakeCluster) -> None:
    cluster = cluster_of(socket_connection_setup_timeout_ms=20_000)
    with pytest.raises(ConnectionFailed, match=r"cannot connect to a..b:9092"):
        connected(cluster, 9092, "a..b")


def test_an_address_that_does_not_answer_is_left_in_time(cluster_of: MakeCluster) -> None:
    """A listener whose queue is full takes no connection and refuses none."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = []
        for _ in range(8):
            each = socket.socket()
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
            waiting.append(each)
        cluster = cluster_of(socket_connection_setup_timeout_ms=100)
        started = time.monotonic()
        with pytest.raises(ConnectionFailed, match="timed out"):
            connected(cluster, port)
        assert time.monotonic() - started >= 0.1
        for each in waiting:
            each.close()


def versions_then(answer: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        asked = peer.serve_versions()
        peer.answer(asked.correlation_id, answer)
        peer.wait_for_end()

    return script


def test_a_response_that_does_not_parse_closes_the_connection(cluster_of: MakeCluster) -> None:
    with ScriptedBroker(versions_then(b"\0\xff\xff\xff\xff\x0f")) as broker:
        cluster = cluster_of()
        connection = connected(cluster, broker.port)
        with pytest.raises(MalformedAnswer, match="answered Metadata 12 with what does not parse") as raised:
            call(cluster, connection, M.MetadataRequest(topics=[]))
        assert raised.value.retriable
        assert connection.is_closed
        with pytest.raises(ConnectionFailed, match="does not parse"):
            call(cluster, connection, M.MetadataRequest(topics=[]))


def test_every_cut_of_a_response_is_an_error_and_no_crash(cluster_of: MakeCluster, broker: WholeBroker) -> None:
    whole = broker.client.call(ApiKey.METADATA, 12, M.MetadataRequest(topics=[])).encode(12)
    cuts = [whole[:size] for size in range(len(whole))]
    left = list(cuts)

    def script(peer: Peer) -> None:
        asked = peer.serve_versions()
        peer.answer(asked.correlation_id, b"\0" + left.pop(0))
        peer.wait_for_end()

    with ScriptedBroker(script) as liar:
        cluster = cluster_of()
        for _ in cuts:
            connection = connected(cluster, liar.port)
            with pytest.raises(MalformedAnswer):
                call(cluster, connection, M.MetadataRequest(topics=[]))


def test_a_call_has_a_timeout_of_its_own(cluster_of: MakeCluster) -> None:
    def script(peer: Peer) -> None:
        peer.serve_versions()
        peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        cluster = cluster_of()
        connection = connected(cluster, broker.port)
        with pytest.raises(TimedOut, match="did not answer Metadata within 30 ms"):
            call(cluster, connection, M.MetadataRequest(topics=[]), timeout_ms=30)


SASL = {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "me", "sasl_password": "p"}


def served_with_sasl(peer: Peer) -> Any:
    """Answers ApiVersions with SASL, as kbroker does not serve it."""
    peer.respond(peer.request(), answers.versions({3: (0, 12), 17: (0, 1), 36: (0, 2)}))
    return peer.request()


def test_a_mechanism_that_is_not_enabled_is_told_with_those_that_are(cluster_of: MakeCluster) -> None:
    def script(peer: Peer) -> None:
        asked = served_with_sasl(peer)
        peer.respond(asked, M.SaslHandshakeResponse(error_code=33, mechanisms=["GSSAPI", "SCRAM-SHA-512"]))
        peer.wait_for_end()

    error = failure(cluster_of, script, **SASL)
    assert isinstance(error, AuthenticationFailed)
    assert not error.retriable
    assert "it has enabled GSSAPI, SCRAM-SHA-512" in str(error)


def test_a_wrong_password_is_told_as_the_broker_tells_it(cluster_of: MakeCluster) -> None:
    def script(peer: Peer) -> None:
        peer.respond(served_with_sasl(peer), M.SaslHandshakeResponse(mechanisms=["PLAIN"]))
        peer.respond(peer.request(), M.SaslAuthenticateResponse(error_code=58, error_message="who are you?"))
        peer.wait_for_end()

    error = failure(cluster_of, script, **SASL)
    assert isinstance(error, AuthenticationFailed)
    assert "who are you?" in str(error)
    assert "sasl.password" in error.hint


def test_an_authentication_that_ends_is_renewed_before(cluster_of: MakeCluster) -> None:
    seen: list[tuple[int, bytes]] = []

    def script(peer: Peer) -> None:
        asked = served_with_sasl(peer)
        while True:
            seen.append((asked.api_key, getattr(asked.message, "auth_bytes", b"")))
            if asked.api_key == ApiKey.SASL_HANDSHAKE:
                peer.respond(asked, M.SaslHandshakeResponse(mechanisms=["PLAIN"]))
            elif asked.api_key == ApiKey.SASL_AUTHENTICATE:
                peer.respond(asked, M.SaslAuthenticateResponse(session_lifetime_ms=40))
            else:
                peer.respond(asked, M.MetadataResponse())
            asked = peer.request()

    with ScriptedBroker(script) as broker:
        cluster = cluster_of(**SASL)
        connection = connected(cluster, broker.port)
        deadline = time.monotonic() + 20
        while len([key for key, _ in seen if key == ApiKey.SASL_AUTHENTICATE]) < 3:
            assert time.monotonic() < deadline
            call(cluster, connection, M.MetadataRequest(topics=[]))
        # A handshake is followed by its token, whatever else is asked meanwhile.
        for at, (key, _) in enumerate(list(seen[:-1])):
            if key == ApiKey.SASL_HANDSHAKE:
                assert seen[at + 1] == (ApiKey.SASL_AUTHENTICATE, b"\0me\0p")


def test_a_plain_listener_is_no_tls_listener(cluster_of: MakeCluster, broker: WholeBroker) -> None:
    cluster = cluster_of(security_protocol="SSL", socket_connection_setup_timeout_ms=5_000)
    with pytest.raises(ClientError, match="is it a TLS listener"):
        connected(cluster, broker.port)


# --- Kafka before 1.0: tokens without requests around them -------------------------------------------------


class OldSasl:
    """SaslHandshake 0, then tokens with nothing but their sizes around them; then requests as ever."""

    def __init__(self, talk: Callable[[Peer, Any], None]):
        self.talk = talk
        self.handshakes: list[int] = []

    def __call__(self, peer: Peer) -> None:
        asked = peer.request()
        if asked.api_key == ApiKey.SASL_HANDSHAKE:
            self.handshakes.append(asked.version)
            self.talk(peer, asked)
            asked = peer.request()
        if asked.version:
            peer.answer(asked.correlation_id, (35).to_bytes(2) + (0).to_bytes(4))
            asked = peer.request()
        peer.respond(asked, answers.versions({3: (0, 2), 17: (0, 0), 18: (0, 0)}))
        peer.respond(peer.request(), M.MetadataResponse())
        peer.wait_for_end()


def token_of(peer: Peer) -> bytes:
    return peer.receive(int.from_bytes(peer.receive(4)))


def test_kafka_before_1_0_is_given_tokens_as_they_are(cluster_of: MakeCluster) -> None:
    tokens = []

    def talk(peer: Peer, asked: Any) -> None:
        peer.respond(asked, M.SaslHandshakeResponse(mechanisms=["PLAIN"]))
        tokens.append(token_of(peer))
        peer.send((0).to_bytes(4))

    script = OldSasl(talk)
    with ScriptedBroker(script) as broker:
        cluster = cluster_of(**SASL)
        connection = connected(cluster, broker.port)
        assert call(cluster, connection, M.MetadataRequest(topics=[])).brokers == []
        assert (script.handshakes, tokens, broker.accepted) == ([0], [b"\0me\0p"], 2)
        assert cluster.network.thread.connecting == set()


def test_kafka_before_1_0_closes_on_a_wrong_password(cluster_of: MakeCluster) -> None:
    def talk(peer: Peer, asked: Any) -> None:
        peer.respond(asked, M.SaslHandshakeResponse(mechanisms=["PLAIN"]))
        token_of(peer)
        raise EOFError

    error = failure(cluster_of, OldSasl(talk), **SASL)
    assert isinstance(error, AuthenticationFailed)
    assert "closed the connection during the authentication" in str(error)
    assert "sasl.password" in error.hint


def test_kafka_before_1_0_tells_what_it_has_enabled(cluster_of: MakeCluster) -> None:
    def talk(peer: Peer, asked: Any) -> None:
        peer.respond(asked, M.SaslHandshakeResponse(error_code=33, mechanisms=["GSSAPI"]))
        peer.wait_for_end()

    error = failure(cluster_of, OldSasl(talk), **SASL)
    assert isinstance(error, AuthenticationFailed)
    assert "refuses sasl.mechanism=PLAIN: UNSUPPORTED_SASL_MECHANISM; it has enabled GSSAPI" in str(error)


def test_a_token_that_is_too_large_is_not_waited_for(cluster_of: MakeCluster) -> None:
    def talk(peer: Peer, asked: Any) -> None:
        peer.respond(asked, M.SaslHandshakeResponse(mechanisms=["PLAIN"]))
        peer.send((1 << 31).to_bytes(4))
        peer.wait_for_end()

    error = failure(cluster_of, OldSasl(talk), **SASL)
    assert isinstance(error, MalformedAnswer)
    assert "announces 2147483648 bytes" in str(error)


def test_an_old_authentication_that_is_silent_ends_in_time(cluster_of: MakeCluster) -> None:
    error = failure(cluster_of, OldSasl(lambda peer, asked: peer.wait_for_end()), request_timeout_ms=100, **SASL)
    assert isinstance(error, TimedOut)
    assert "did not authenticate within 100 ms" in str(error)


# --- names with several addresses -------------------------------------------------------------------------


def test_each_address_of_a_name_is_tried(
    cluster_of: MakeCluster, broker: WholeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::1", 0))  # and does not listen
        refused = taken.getsockname()
        asked = []

        def addresses(host: str, port: int, **how: Any) -> list[Any]:
            asked.append((host, port))
            found = [(socket.AF_INET6, refused), (socket.AF_INET, ("127.0.0.1", broker.port))]
            return [(family, socket.SOCK_STREAM, 6, "", target) for family, target in found]

        monkeypatch.setattr(socket, "getaddrinfo", addresses)
        cluster = cluster_of()
        connection = connected(cluster, broker.port, "kafka.example")
        assert call(cluster, connection, M.MetadataRequest(topics=[])).brokers
        assert asked == [("kafka.example", broker.port)]


def test_all_that_failed_of_a_names_addresses_is_told(cluster_of: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken, socket.socket() as full:
        taken.bind(("127.0.0.1", 0))
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = []
        for _ in range(8):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(full.getsockname())
        found = [full.getsockname(), taken.getsockname()]
        listed = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", target) for target in found]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **how: listed)
        with pytest.raises(ConnectionFailed, match=r"kafka.example:9092: timed out, connection refused"):
            connected(cluster_of(socket_connection_setup_timeout_ms=300), 9092, "kafka.example")
        for each in waiting:
            each.close()
