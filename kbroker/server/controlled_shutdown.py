"""Hands the leadership of a stopping member's partitions over to the other brokers (ControlledShutdown)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages import Message
from kbroker.replication.surroundings import AskController

LOG = logging.getLogger(__name__)

HIGHEST_VERSION = 3
MOVED = (ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_CONTROLLER_EPOCH)
"""What a broker answers that is not the controller; Kafka gives the second one."""
NO_CONTROLLER_PAUSE_S = 0.1
"""The pause before a controller is asked again that was none: the next one is elected within a moment."""
LOOK_S = 0.1
"""How often a pause looks whether other brokers are alive."""


class HandOver(NamedTuple):
    """How to ask: at most `attempts` times, with pauses of `pause_s`, and no longer than `timeout_s` each time."""

    attempts: int
    pause_s: float
    timeout_s: float


def hand_over(
    ask: AskController,
    node_id: int,
    broker_epoch: Callable[[], int],
    has_others: Callable[[], bool],
    options: HandOver,
) -> bool:
    """Ask the controller to move this broker's leaderships away, and wait for it. Returns whether none is left.

    It is not asked any more as soon as no other broker is alive, which `has_others` tells from the metadata. The
    partitions that stay are those that no other replica can lead. A broker that cannot hand over stops all the same: it
    is then taken for one that has failed.
    """
    left = options.attempts
    moves = 5 * options.attempts
    while has_others():
        response = _asked(ask, node_id, broker_epoch(), options.timeout_s)
        pause_s = options.pause_s
        if response is None or response.error_code in MOVED:
            moves -= 1
            pause_s = min(NO_CONTROLLER_PAUSE_S, pause_s) if moves > 0 else pause_s
            left -= moves <= 0
        else:
            left -= 1
            if not response.error_code and not response.remaining_partitions:
                return True
            if response.error_code:
                LOG.warning("the controller takes no partitions over: %s", ErrorCode(response.error_code).name)
            else:
                LOG.warning("%d partitions have no other leader yet", len(response.remaining_partitions))
        if left <= 0:
            LOG.warning("stopping although partitions are still led here, or the controller is not reached")
            return False
        _wait(pause_s, has_others)
    LOG.info("no other broker is alive to lead the partitions of this one")
    return False


def _wait(pause_s: float, has_others: Callable[[], bool]) -> None:
    deadline = time.monotonic() + pause_s
    while has_others() and (left_s := deadline - time.monotonic()) > 0:
        time.sleep(min(left_s, LOOK_S))


def _asked(
    ask: AskController, node_id: int, broker_epoch: int, timeout_s: float
) -> M.ControlledShutdownResponse | None:
    """Return the controller's answer; None if there is none in time."""
    answers: list[Message | None] = []
    has_come = threading.Event()

    def take(answer: Message | None, _version: int) -> None:
        answers.append(answer)
        has_come.set()

    ask(
        lambda _version: M.ControlledShutdownRequest(broker_id=node_id, broker_epoch=broker_epoch),
        ApiKey.CONTROLLED_SHUTDOWN,
        HIGHEST_VERSION,
        take,
    )
    has_come.wait(timeout_s)
    answer = answers[0] if answers else None
    return answer if isinstance(answer, M.ControlledShutdownResponse) else None
