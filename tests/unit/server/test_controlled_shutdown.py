"""A member that stops has the controller move its leaderships away: how often it asks, and when it gives that up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.config.broker_config import load_config
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages import Message
from kbroker.replication.surroundings import Answered
from kbroker.server import controlled_shutdown
from kbroker.server.broker import Broker
from kbroker.server.controlled_shutdown import HIGHEST_VERSION, NO_CONTROLLER_PAUSE_S, HandOver, hand_over

PAUSE_S = 5.0
TIMEOUT_S = 30.0
SOON_S = NO_CONTROLLER_PAUSE_S
Answer = M.ControlledShutdownResponse | None


def answer(remaining: int = 0, code: ErrorCode = ErrorCode.NONE) -> M.ControlledShutdownResponse:
    Remaining = M.ControlledShutdownResponse.RemainingPartition
    left = [Remaining(topic_name="t", partition_index=each) for each in range(remaining)]
    return M.ControlledShutdownResponse(error_code=code, remaining_partitions=left)


DONE = answer()
LEFT = answer(2)
MOVED = answer(code=ErrorCode.NOT_CONTROLLER)
MOVED_KAFKA = answer(code=ErrorCode.STALE_CONTROLLER_EPOCH)
REFUSED = answer(code=ErrorCode.STALE_BROKER_EPOCH)
NOBODY = None
"""There is no controller, or its connection breaks."""
SILENCE = answer(code=ErrorCode.REQUEST_TIMED_OUT)
"""In a script: nothing is answered."""


class Cluster:
    """What a stopping broker sees of the others: a controller that answers from a script, and who is alive.

    The last answer of the script is given for ever. Time passes in pauses, and while nothing is answered.
    """

    def __init__(self) -> None:
        self.script: Sequence[Answer] = [DONE]
        self.asked_at: list[float] = []
        """The seconds from the beginning at which it was asked."""
        self.requests: list[Message] = []
        self.now_s = 0.0
        self.others_gone_at_s = 1e9
        self.unanswered: list[Answered] = []
        self.broker_epoch = 7
        self.on_asked: Callable[[], object] = lambda: None

    def ask(self, make: Callable[[int], Message], api_key: int, highest_version: int, answered: Answered) -> None:
        assert (api_key, highest_version) == (ApiKey.CONTROLLED_SHUTDOWN, HIGHEST_VERSION)
        place = min(len(self.asked_at), len(self.script) - 1)
        self.asked_at.append(round(self.now_s, 6))
        self.requests.append(make(highest_version))
        assert len(self.requests) < 1000, "it asks without end"
        self.on_asked()
        told = self.script[place]
        if told is SILENCE:
            self.unanswered.append(answered)
        else:
            answered(told, highest_version)

    def has_others(self) -> bool:
        return self.now_s < self.others_gone_at_s

    def hand_over(self, *script: Answer, attempts: int = 3, pause_s: float = PAUSE_S) -> bool:
        self.script = script
        options = HandOver(attempts, pause_s, TIMEOUT_S)
        return hand_over(self.ask, 1, lambda: self.broker_epoch, self.has_others, options)

    @property
    def image(self) -> Any:
        """The metadata of broker 1."""
        return SimpleNamespace(brokers={1: None, 2: None} if self.has_others() else {1: None})

    # --- time -----------------------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds

    def event(self) -> Event:
        return Event(self)


class Event:
    """A `threading.Event` that nobody sets any more while it is waited for."""

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def wait(self, timeout_s: float) -> None:
        if not self._is_set:
            self._cluster.sleep(timeout_s)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(controlled_shutdown, "time", made)
    monkeypatch.setattr(controlled_shutdown, "threading", SimpleNamespace(Event=made.event))
    return made


def test_a_controller_that_takes_everything_over_is_asked_once(cluster: Cluster) -> None:
    assert cluster.hand_over(DONE)
    assert cluster.asked_at == [0]
    assert cluster.requests == [M.ControlledShutdownRequest(broker_id=1, broker_epoch=7)]


def test_while_partitions_remain_the_controller_is_asked_again_after_the_pause(cluster: Cluster) -> None:
    assert cluster.hand_over(LEFT, LEFT, DONE)
    assert cluster.asked_at == [0, PAUSE_S, 2 * PAUSE_S]


@pytest.mark.parametrize("attempts", [1, 2, 5])
@pytest.mark.parametrize("told", [LEFT, REFUSED], ids=["partitions remain", "refused"])
def test_after_as_many_questions_as_are_set_the_broker_stops_all_the_same(
    cluster: Cluster, told: Answer, attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert not cluster.hand_over(told, attempts=attempts)
    assert cluster.asked_at == [PAUSE_S * each for each in range(attempts)]
    said = "2 partitions have no other leader yet" if told is LEFT else "takes no partitions over: STALE_BROKER_EPOCH"
    assert caplog.text.count(said) == attempts
    assert caplog.text.count("stopping although partitions are still led here") == 1


def test_an_error_is_not_taken_for_a_hand_over_of_everything(cluster: Cluster) -> None:
    assert cluster.hand_over(REFUSED, DONE)
    assert len(cluster.asked_at) == 2


@pytest.mark.parametrize(
    "told", [MOVED, MOVED_KAFKA, NOBODY], ids=["another one is it", "and Kafka's word for it", "no answer"]
)
def test_the_next_controller_is_asked_soon_and_that_costs_no_attempt(cluster: Cluster, told: Answer) -> None:
    assert cluster.hand_over(told, told, LEFT, told, DONE, attempts=2)
    soon = [0, SOON_S, 2 * SOON_S]
    assert cluster.asked_at == [*soon, 2 * SOON_S + PAUSE_S, 3 * SOON_S + PAUSE_S]


@pytest.mark.parametrize("told", [MOVED, MOVED_KAFKA, NOBODY])
def test_who_finds_no_controller_for_long_pauses_as_set_and_then_stops_all_the_same(
    cluster: Cluster, told: Answer
) -> None:
    assert not cluster.hand_over(told, attempts=2)
    soon = [SOON_S * each for each in range(10)]
    assert cluster.asked_at == pytest.approx([*soon, soon[-1] + PAUSE_S])


def test_a_controller_that_says_nothing_is_waited_for_as_long_as_is_set_and_asked_again(cluster: Cluster) -> None:
    assert cluster.hand_over(SILENCE, DONE)
    assert cluster.asked_at == [0, TIMEOUT_S + SOON_S]


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(cluster: Cluster) -> None:
    def answer_late() -> None:
        if cluster.unanswered:
            cluster.unanswered.pop()(DONE, HIGHEST_VERSION)

    cluster.on_asked = answer_late
    assert not cluster.hand_over(SILENCE, LEFT, attempts=1)


def test_a_pause_that_is_set_shorter_is_kept_for_the_next_controller_too(cluster: Cluster) -> None:
    assert cluster.hand_over(MOVED, MOVED, DONE, pause_s=SOON_S / 4)
    assert cluster.asked_at == [0, SOON_S / 4, SOON_S / 2]
    assert not cluster.hand_over(MOVED, pause_s=0)


def test_each_question_is_asked_in_the_registration_of_its_moment(cluster: Cluster) -> None:
    def register_again() -> None:
        cluster.broker_epoch += 1

    cluster.on_asked = register_again
    assert cluster.hand_over(MOVED, REFUSED, DONE)
    assert cluster.requests == [M.ControlledShutdownRequest(broker_id=1, broker_epoch=each) for each in (7, 8, 9)]


def test_the_last_broker_that_is_alive_asks_nobody(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    cluster.others_gone_at_s = 0
    assert not cluster.hand_over(LEFT)
    assert cluster.asked_at == [] and cluster.now_s == 0
    assert "no other broker is alive" in caplog.text


@pytest.mark.parametrize("told", [LEFT, NOBODY])
def test_a_broker_whose_others_go_waits_for_nobody_any_more(cluster: Cluster, told: Answer) -> None:
    cluster.others_gone_at_s = 0.01
    assert not cluster.hand_over(told, attempts=1000)
    assert len(cluster.asked_at) == 1
    assert cluster.now_s < PAUSE_S / 10, "not even to the end of the pause"


# --- the settings -----------------------------------------------------------------------------------------------------


def leave(cluster: Cluster, folder: Path, **settings: object) -> None:
    """Let a member leave that is in the cluster, as its broker does first when it stops."""
    given = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "zookeeper.connect": "127.0.0.1:1",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    broker = Broker(load_config(None, [f"{name}={value}" for name, value in given.items()], folder, environment={}))
    member: Any = broker._home
    member.node_id = 1
    member.cluster = cluster
    member._ask_controller = cluster.ask
    member.leave()


def test_a_member_asks_as_often_and_waits_as_long_as_is_set(cluster: Cluster, tmp_path: Path) -> None:
    cluster.script = [SILENCE, LEFT]
    leave(
        cluster,
        tmp_path,
        controlled_shutdown_max_retries=2,
        controlled_shutdown_retry_backoff_ms=700,
        controller_socket_timeout_ms=4000,
    )
    assert cluster.asked_at == pytest.approx([0, 4 + SOON_S, 4 + SOON_S + 0.7])


def test_a_member_asks_nobody_if_that_is_switched_off(cluster: Cluster, tmp_path: Path) -> None:
    leave(cluster, tmp_path, controlled_shutdown_enable="false")
    assert cluster.asked_at == [] and cluster.now_s == 0
    leave(cluster, tmp_path, controlled_shutdown_enable="true")
    assert cluster.asked_at == [0]


def test_a_member_whose_metadata_has_no_other_broker_asks_nobody(cluster: Cluster, tmp_path: Path) -> None:
    cluster.others_gone_at_s = 0
    leave(cluster, tmp_path)
    assert cluster.asked_at == []
