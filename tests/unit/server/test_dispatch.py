"""Dispatch: which handler serves a request, on which thread, and what becomes of errors."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
import threading
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.errors import ErrorCode, NotNow, ProtocolError
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.protocol.messages import Message
from kbroker.server import dispatch
from kbroker.server.dispatch import LARGE_REQUEST_SIZE, ROUTES, Dispatcher, Route
from kbroker.server.handlers import heartbeat
from kbroker.server.request_channel import RequestChannel

NOTHING = cast(Any, None)


class Asked:
    """The part of a request that the dispatcher uses."""

    api_key = int(ApiKey.HEARTBEAT)
    api_version = 4

    def __init__(self, body: bytes | None = None):
        message = M.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        self.body = memoryview(message.encode(4) if body is None else body)
        self.answers: list[bytes] = []
        self.errors: list[int] = []
        self.closed: list[str] = []

    def respond_with(self, message: Message) -> None:
        self.respond(message.encode(self.api_version))

    def respond(self, body: bytes) -> None:
        if self.answers or self.closed:
            raise RuntimeError("has been answered already")
        self.answers.append(body)

    def close(self, reason: str) -> None:
        if self.answers:
            raise RuntimeError("has been answered already")
        self.closed.append(reason)

    def count_error(self, code: int) -> None:
        self.errors.append(code)


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The outcome of Heartbeat's handler: an exception is raised, anything else returned."""
    outcome: list[Any] = []

    def handle(services: Any, request: Any, message: M.HeartbeatRequest) -> Any:
        assert message.group_id == "g"
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    monkeypatch.setattr(heartbeat, "handle", handle)
    return outcome


def dispatcher(capacity: int = 1, services: Any = NOTHING, **route: Any) -> tuple[Dispatcher, RequestChannel]:
    channel = RequestChannel(capacity)
    return Dispatcher(services, channel, {ApiKey.HEARTBEAT: Route("heartbeat", **route)}), channel


def test_every_served_api_has_a_handler() -> None:
    assert set(ROUTES) == set(SERVED)
    for route in ROUTES.values():
        assert callable(importlib.import_module(f"kbroker.server.handlers.{route.module}").handle)


HANDLERS = """
import sys
from typing import Any, cast
from kbroker.server import dispatch
from kbroker.server.dispatch import ROUTES, Dispatcher, Lane
from kbroker.server.request_channel import RequestChannel

def loaded():
    names = {name for name in sys.modules if name.startswith("kbroker.server.handlers.")}
    return {name for name in names if not name.startswith("kbroker.server.handlers.shared")}

def modules(routes):
    return {f"kbroker.server.handlers.{route.module}" for route in routes}

assert loaded() == set(), loaded()
Dispatcher(cast(Any, None), RequestChannel(1)).load_all()
assert loaded() == modules(route for route in ROUTES.values() if route.lane is Lane.HANDLERS), loaded()
lanes = {lane: RequestChannel(1) for lane in (Lane.CONTROL, Lane.CONTROLLER)}
Dispatcher(cast(Any, None), RequestChannel(1), lanes=lanes).load_all()
assert loaded() == modules(ROUTES.values()), loaded()
"""


def test_handlers_are_imported_after_the_start_all_at_once() -> None:
    subprocess.run([sys.executable, "-c", HANDLERS], check=True, timeout=60)


def test_a_response_is_encoded_in_the_requests_version(handled: list[Any]) -> None:
    handled.append(M.HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION))
    asked = Asked()
    dispatcher()[0].serve(cast(Any, asked))
    assert M.HeartbeatResponse.decode(asked.answers[0], 4).error_code == ErrorCode.ILLEGAL_GENERATION
    assert asked.errors == [ErrorCode.ILLEGAL_GENERATION]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, "who?"), ErrorCode.UNKNOWN_MEMBER_ID),
        (NotNow("not yet"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ZeroDivisionError("a mistake"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_exception_becomes_the_apis_error_response(
    handled: list[Any], error: Exception, code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    handled.append(error)
    asked = Asked()
    dispatcher()[0].serve(cast(Any, asked))
    assert M.HeartbeatResponse.decode(asked.answers[0], 4).error_code == code
    assert asked.errors == [code]
    assert ("a mistake" in caplog.text) == isinstance(error, ZeroDivisionError)


@pytest.mark.parametrize("body", [b"", b"\xff" * 20])
def test_a_body_that_does_not_parse_closes_the_connection(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked(body)
    with caplog.at_level(logging.ERROR):
        dispatcher()[0].serve(cast(Any, asked))
    assert asked.answers == []
    assert asked.closed[0].startswith("a request that does not parse: ")
    assert caplog.text == ""


def test_a_handler_that_fails_after_answering_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(services: Any, request: Any, message: Any) -> Any:
        request.respond(b"answer")
        raise ValueError("too late")

    monkeypatch.setattr(heartbeat, "handle", handle)
    asked = Asked()
    dispatcher()[0].serve(cast(Any, asked))
    assert asked.answers == [b"answer"]
    assert asked.closed == []
    assert "too late" in caplog.text


def test_what_may_block_goes_through_the_channel(handled: list[Any]) -> None:
    handled.append(M.HeartbeatResponse())
    serving, channel = dispatcher(blocking=True)
    processor = cast(Any, type("Processor", (), {"resume": lambda self: None})())
    first, second = Asked(), Asked()
    assert serving.on_request(cast(Any, first), processor)
    assert not serving.on_request(cast(Any, second), processor)
    assert first.answers == []
    serving.serve(cast(Any, channel.dequeue()))
    assert len(first.answers) == 1


def test_what_cannot_block_is_served_at_once(handled: list[Any]) -> None:
    handled.append(M.HeartbeatResponse())
    serving, channel = dispatcher(blocking=False)
    asked = Asked()
    assert serving.on_request(cast(Any, asked), NOTHING)
    assert len(asked.answers) == 1
    assert len(channel) == 0


def test_a_large_request_is_never_read_on_the_processors_thread(handled: list[Any]) -> None:
    handled.append(M.HeartbeatResponse())
    serving, channel = dispatcher(blocking=False)
    message = M.HeartbeatRequest(group_id="g", generation_id=1, member_id="m").encode(4)
    for size, is_handed_over in [(LARGE_REQUEST_SIZE, False), (LARGE_REQUEST_SIZE + 1, True)]:
        asked = Asked(message.ljust(size, b"\0"))
        assert serving.on_request(cast(Any, asked), NOTHING)
        assert (len(asked.answers), len(channel)) == (0 if is_handed_over else 1, is_handed_over)


def test_a_handler_may_say_that_this_request_blocks(handled: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    handled.append(M.HeartbeatResponse())
    blocks = [True]
    monkeypatch.setattr(heartbeat, "blocks", lambda services, request, message: blocks[0], raising=False)
    serving, channel = dispatcher(blocking=False)
    assert serving.on_request(cast(Any, Asked()), NOTHING)
    assert len(channel) == 1
    blocks[0] = False
    asked = Asked()
    assert serving.on_request(cast(Any, asked), NOTHING)
    assert len(asked.answers) == 1


def test_what_appends_is_handed_over_while_writers_have_to_wait(handled: list[Any]) -> None:
    handled.append(M.HeartbeatResponse())
    logs = SimpleNamespace(is_stalled=True)
    serving, channel = dispatcher(services=SimpleNamespace(logs=logs), blocking=False, appends=True)
    assert serving.on_request(cast(Any, Asked()), NOTHING)
    assert len(channel) == 1
    logs.is_stalled = False
    asked = Asked()
    assert serving.on_request(cast(Any, asked), NOTHING)
    assert len(asked.answers) == 1


def test_huge_requests_are_served_one_after_the_other_and_no_handler_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serving a huge request takes many times its bytes."""
    begun, go_on = SimpleQueue[str](), threading.Semaphore(0)

    def handle(services: Any, request: Any, message: M.HeartbeatRequest) -> M.HeartbeatResponse:
        begun.put(message.member_id)
        assert go_on.acquire(timeout=10)
        return M.HeartbeatResponse()

    monkeypatch.setattr(heartbeat, "handle", handle)
    monkeypatch.setattr(dispatch, "HUGE_REQUEST_SIZE", 1000)
    serving = dispatcher()[0]

    def asked(name: str) -> Asked:
        return Asked(M.HeartbeatRequest(group_id="g" * 1000, generation_id=1, member_id=name).encode(4))

    requests = [asked(name) for name in "abc"]
    first = threading.Thread(target=serving.serve, args=(requests[0],))
    first.start()
    assert begun.get(timeout=10) == "a"
    for request in requests[1:]:
        serving.serve(cast(Any, request))
        assert not request.answers
    go_on.release()
    assert begun.get(timeout=10) == "b"
    go_on.release(2)
    first.join(10)
    assert [len(request.answers) for request in requests] == [1, 1, 1]
    go_on.release()
    serving.serve(cast(Any, last := asked("d")))
    assert len(last.answers) == 1
