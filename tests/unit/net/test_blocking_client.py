"""What a peer can do wrong; what it does right is tested by the commands against a real broker."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from kbroker.errors import ErrorCode, KbrokerError, MalformedBytes, ProtocolError
from kbroker.net.blocking_client import BlockingClient, Unreachable, raise_for
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.headers import decode_request_header, encode_response

Script = Callable[[bytes], bytes]
"""A frame without its size -> what to send back; nothing closes the connection."""


@contextmanager
def peer(script: Script) -> Iterator[str]:
    """The address of a listener that answers each frame by `script`."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            # A client that closes before it has read everything resets the connection.
            with connection, connection.makefile("rb") as stream, suppress(ConnectionResetError):
                while head := stream.read(4):
                    answer = script(stream.read(int.from_bytes(head)))
                    if not answer:
                        break
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def served(*apis: tuple[ApiKey, int, int], error_code: int = 0) -> M.ApiVersionsResponse:
    return M.ApiVersionsResponse(
        error_code=error_code,
        api_keys=[
            M.ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in apis
        ],
    )


def good(frame: bytes, *apis: tuple[ApiKey, int, int]) -> bytes:
    header, _ = decode_request_header(frame)
    return encode_response(ApiKey.API_VERSIONS, header.request_api_version, header.correlation_id, served(*apis))


@pytest.mark.parametrize(
    ("script", "error", "says"),
    [
        (lambda _: b"", Unreachable, "closed the connection"),
        (lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", MalformedBytes, "may not be a Kafka listener"),
        (lambda _: b"\xff\xff\xff\xff", MalformedBytes, "announced a response of -1 bytes"),
        (lambda _: b"\0\0\0\x08\0\0\0\x09\0\0\0\0", KbrokerError, ""),
        (
            lambda _: encode_response(ApiKey.API_VERSIONS, 3, 77, served()),
            MalformedBytes,
            "answered request 77 instead of 1",
        ),
        (
            lambda _: encode_response(ApiKey.API_VERSIONS, 3, 1, served(error_code=58)),
            ProtocolError,
            "SASL_AUTHENTICATION",
        ),
        (lambda frame: good(frame), ProtocolError, "serves no version of Metadata"),
        (lambda frame: good(frame, (ApiKey.METADATA, 90, 99)), ProtocolError, "serves no version of Metadata"),
    ],
)
def test_a_peer_that_answers_wrongly_is_an_error_of_ours(script: Script, error: type[KbrokerError], says: str) -> None:
    with peer(script) as address, BlockingClient(address, timeout_s=10) as client:
        with pytest.raises(error) as caught:
            client.metadata([])
        assert says in str(caught.value)


def test_a_silent_peer_is_waited_for_so_long_and_no_longer() -> None:
    release = threading.Event()

    def silent(_frame: bytes) -> bytes:
        release.wait(10)
        return b""

    with peer(silent) as address:
        with BlockingClient(address, timeout_s=0.05) as client, pytest.raises(Unreachable, match="timed out"):
            client.metadata([])
        release.set()


def test_a_broker_of_old_is_asked_again_in_version_0() -> None:
    asked = []

    def old(frame: bytes) -> bytes:
        header, _ = decode_request_header(frame)
        asked.append((header.request_api_key, header.request_api_version))
        if header.request_api_key == ApiKey.METADATA:
            return encode_response(ApiKey.METADATA, 1, header.correlation_id, M.MetadataResponse(controller_id=5))
        code = ErrorCode.UNSUPPORTED_VERSION if header.request_api_version else ErrorCode.NONE
        body = served((ApiKey.METADATA, 0, 1), error_code=code)
        return encode_response(ApiKey.API_VERSIONS, 0, header.correlation_id, body)

    with peer(old) as address, BlockingClient(address, timeout_s=10) as client:
        assert client.metadata([]).controller_id == 5
    assert asked == [(18, 3), (18, 0), (3, 1)]


def test_the_next_address_is_tried_and_all_are_named_when_none_answers() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            peer(lambda frame: good(frame, (ApiKey.METADATA, 0, 12))) as address,
            BlockingClient(f"{closed},{address}", timeout_s=10) as client,
        ):
            assert client.connection().version_of(ApiKey.METADATA) == 12
        with BlockingClient(f"{closed},{closed}", timeout_s=10) as client, pytest.raises(Unreachable) as error:
            client.metadata([])
        assert str(error.value).count(f"cannot connect to {closed}: connection refused") == 2


def test_retriable_errors_are_retried_and_others_are_not() -> None:
    client = BlockingClient("a", timeout_s=10)
    calls = []

    def attempt() -> str:
        calls.append(1)
        raise_for(ErrorCode.NOT_LEADER_OR_FOLLOWER if len(calls) < 3 else ErrorCode.NONE)
        return "done"

    assert client.retried(attempt) == "done" and len(calls) == 3
    with pytest.raises(ProtocolError, match="topic 't': INVALID_CONFIG: bad") as error:
        client.retried(lambda: raise_for(ErrorCode.INVALID_CONFIG, "bad", "topic 't'"))
    assert error.value.code is ErrorCode.INVALID_CONFIG
    with pytest.raises(ProtocolError, match="NOT_LEADER"):
        BlockingClient("a", timeout_s=0.01).retried(lambda: raise_for(ErrorCode.NOT_LEADER_OR_FOLLOWER))


def test_an_error_code_from_the_future_is_named_by_its_number() -> None:
    with pytest.raises(KbrokerError, match="unknown error code 9999"):
        raise_for(9999, None, "x")
