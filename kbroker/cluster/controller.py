"""The controller of the cluster, as every member has it: at most one is active at a time.

It drives the rules in `rules/controller`: events come in, and commands are carried out in the store and told to brokers
(`control_channels.py`). It has no thread: somebody calls `step`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kbroker.clock import Clock
from kbroker.cluster.controller_requests import Answered, refusal
from kbroker.cluster.peers import Peers
from kbroker.coordination.store import Store
from kbroker.errors import ErrorCode


class ControllerConfig(NamedTuple):
    """The settings of a controller. Times in seconds."""

    inter_broker_listener: str = "PLAINTEXT"
    """The name of the listener at which the controller reaches other brokers (control.plane.listener.name, if set)."""
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_per_broker_percentage: int = 10
    leader_imbalance_check_interval_s: int = 300
    delete_topic_enable: bool = True
    request_timeout_ms: int = 30_000


class BrokerRefuses(NamedTuple):
    """Nobody listens at a broker's address any more: its process is gone, although its session may last."""

    broker_id: int


class UncleanElectionEnabled(NamedTuple):
    """A config has been set that allows unclean elections; `topic` None: for all topics."""

    topic: str | None = None


Event = BrokerRefuses | UncleanElectionEnabled


class Controller:
    """One member's part in the election of the controller, and the controller's work while it is elected.

    `post`, `ask`, `session_is`, `resign` and the properties are for any thread. `step` is for one thread at a time.
    """

    def __init__(
        self,
        node_id: int,
        peers: Peers,
        clock: Clock,
        config: ControllerConfig,
        allows_unclean: Callable[[str], bool],
        *,
        wake: Callable[[], None] = lambda: None,
    ):
        """`peers` are the controller's own: it sets their addresses.

        `allows_unclean` tells from the broker's own settings whether a topic without unclean.leader.election.enable of
        its own may have unclean elections. `wake` is called on any thread when `step` has something to do.
        """
        self._node_id = node_id

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller."""
        return False

    @property
    def controller_id(self) -> int:
        """The id of the broker that is the controller, as far as this one knows; -1 while there is none."""
        return -1

    def session_is(self, store: Store, broker_epoch: int) -> None:
        """Take part in elections from now on, over a new session, in which this broker is registered."""
        raise NotImplementedError

    def resign(self) -> None:
        """Stop being the controller and taking part, until `session_is`: the session has ended, or this broker stops.

        What is under way ends without a further write. `is_active` is False when this returns.
        """
        raise NotImplementedError

    def post(self, event: Event) -> None:
        """Queue an event."""
        raise NotImplementedError

    def ask(self, request: Any, answered: Answered) -> None:
        """Queue a request (`controller_requests.py`, `topic_requests.py`); it is refused at once if not active."""
        answered(refusal(request, ErrorCode.NOT_CONTROLLER))

    def step(self) -> bool:
        """Take an event, or carry out one command of the event that is under way. Returns whether there was one."""
        raise NotImplementedError

    def idle_ms(self) -> int:
        """Return how long nothing is due, in milliseconds, unless `wake` is called; 0: `step` has something to do."""
        raise NotImplementedError
