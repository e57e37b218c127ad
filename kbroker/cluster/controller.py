"""The controller of the cluster, as every member has it: at most one is active at a time.

It takes part in elections (`controller_election.py`), and drives the rules in `rules/controller`: events come in, and
commands are carried out in the store (`controller_store.py`) and told to brokers (`control_channels.py`). It has no
thread: somebody calls `step`, which does one thing and returns. So an event may be stopped between any two commands.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from kbroker.clock import Clock
from kbroker.cluster.control_channels import ControlChannels
from kbroker.cluster.control_requests import roles_answer, stops_answer
from kbroker.cluster.controller_election import Candidate, Elected
from kbroker.cluster.controller_flows import (
    Balance,
    BrokersChanged,
    DeletionsChanged,
    DirectoriesFailed,
    IsrsChanged,
    PreferredAsked,
    ReassignmentsAsked,
    ReassignmentsWait,
    Surroundings,
    TopicsChanged,
    TopicsGrew,
    UncleanElectionEnabled,
    flow_of,
)
from kbroker.cluster.controller_requests import Answered, ListReassignments, refusal
from kbroker.cluster.controller_store import ControllerStore
from kbroker.cluster.fenced_writes import FencedWrites, Moved
from kbroker.cluster.peers import Peers
from kbroker.coordination import paths
from kbroker.coordination.store import (
    EventKind,
    SessionExpired,
    Store,
    StoreUnavailable,
    WatchEvent,
    parent_of,
)
from kbroker.errors import ErrorCode
from kbroker.protocol.messages import (
    LeaderAndIsrResponse,
    Message,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from kbroker.rules.controller.commands import (
    AddChannel,
    Answer,
    ControlRequest,
    LeaderAndIsr,
    ReadBrokers,
    RemoveChannel,
    Rule,
    Send,
    StopReplica,
)
from kbroker.rules.controller.context import Context
from kbroker.rules.controller.takeover import take_over
from kbroker.rules.controller.values import Broker

log = logging.getLogger(__name__)

RETRY_MS = 100
"""The pause before the store is asked again that could not be reached."""
FAILED_PAUSE_S = 1.0
"""The pause of a broker that has failed to take over, before it takes part in an election again."""
FIRST_BALANCE_S = 5
NOTHING_DUE_MS = 60_000
NOTES_TOLD = 20
"""Most lines that the log gets about one command."""


class ControllerConfig(NamedTuple):
    """The settings of a controller. Times in seconds where the name says nothing else."""

    inter_broker_listener: str = "PLAINTEXT"
    control_plane_listener: str | None = None
    """The listener at which the controller reaches brokers, if it is not the one at which they reach each other."""
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_per_broker_percentage: int = 10
    leader_imbalance_check_interval_s: int = 300
    delete_topic_enable: bool = True
    request_timeout_ms: int = 30_000


class BrokerRefuses(NamedTuple):
    """Nobody listens at a broker's address any more: its process is gone, although its session may last."""

    broker_id: int


class _Reached(NamedTuple):
    """Somebody listens again at the address of a broker that had refused."""

    broker_id: int


class _Elect(NamedTuple):
    """The node of the controller was made or removed, or has to be looked at."""


class _ToolNode(NamedTuple):
    """A node that a tool makes was made, changed or removed."""

    path: str
    kind: EventKind


class _Told(NamedTuple):
    """A broker has answered what the controller told it."""

    broker_id: int
    request: ControlRequest
    answer: Message


class _Ask(NamedTuple):
    """A request to the controller."""

    request: Any
    answered: Answered


Event = BrokerRefuses | UncleanElectionEnabled

_COALESCED = (
    BrokersChanged,
    TopicsChanged,
    TopicsGrew,
    DeletionsChanged,
    DirectoriesFailed,
    IsrsChanged,
    ReassignmentsAsked,
    ReassignmentsWait,
    PreferredAsked,
    Balance,
    _Elect,
)
"""Events that say "look again": one in the queue is as good as two."""

_OF_CHILDREN = {
    paths.BROKER_IDS: BrokersChanged(),
    paths.TOPICS: TopicsChanged(),
    paths.DELETE_TOPICS: DeletionsChanged(),
    paths.LOG_DIR_EVENT_NOTIFICATIONS: DirectoriesFailed(),
    paths.ISR_CHANGE_NOTIFICATIONS: IsrsChanged(),
}
_OF_TOOLS = {
    paths.REASSIGN_PARTITIONS: ReassignmentsAsked(),
    paths.PREFERRED_REPLICA_ELECTION: PreferredAsked(),
}


class Elections(NamedTuple):
    """What this broker has done as the controller since its start, for metrics."""

    held: int = 0
    """How often it has settled that brokers came or went."""
    seconds: float = 0.0
    """How long that took, together."""
    unclean: int = 0
    """How many leaders were not in the ISR."""


class _Session(NamedTuple):
    """A session with the store in which this broker is registered."""

    candidate: Candidate
    store: Store
    watcher: Callable[[WatchEvent], None]


class _Term(NamedTuple):
    """What this broker has while it is the controller."""

    context: Context
    store: ControllerStore
    channels: ControlChannels
    epoch_version: int


class Controller:
    """One member's part in the election of the controller, and the controller's work while it is elected.

    `post`, `ask`, `session_is`, `resign` and the properties are for any thread. `step` and `idle_ms` are for one thread
    at a time. `_lock` guards the queue, the session and `_is_active`; no callback is called while it is held.
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
        self._peers = peers
        self._clock = clock
        self._config = config
        self._allows_unclean = allows_unclean
        self._wake = wake
        self._lock = threading.Lock()
        self._events: deque[Any] = deque()
        self._queued: set[Any] = set()
        self._session: _Session | None = None
        self._is_active = False
        # What follows is for the thread that calls `step`.
        self.elections = Elections()
        """For any thread to look at."""
        self._brokers_changed_at: float | None = None
        """When it began to settle what it is settling now: that brokers came or went."""
        self._used: _Session | None = None
        self._elected: Elected | None = None
        self._term: _Term | None = None
        self._flow: Rule[None] | None = None
        self._asked: _Ask | None = None
        self._command: Any = None
        self._is_again = False
        self._is_waiting = False
        """Whether the store was away at the last try, and that was told."""
        self._is_taking_over = False
        self._unreadable = ""
        """What is wrong with a node of the election, and was told."""
        self._retry_at = 0.0
        self._balance_at: float | None = None
        self._suspects: dict[int, int] = {}
        """Epochs of brokers whose process is known to be gone although they are registered."""
        self._gone: dict[int, int] = {}
        """The same, noted while another broker is the controller: the suspects of the next term."""
        self._around = Surroundings(config.delete_topic_enable, config.leader_imbalance_per_broker_percentage)
        peers.on_refused(lambda broker_id: self.post(BrokerRefuses(broker_id)))

    # --- for any thread -----------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller."""
        return self._is_active

    def is_deleting(self, topic: str) -> bool:
        """Whether this broker is the controller and a topic is to be deleted, or being deleted. For any thread."""
        term = self._term
        return term is not None and topic in term.context.deleting

    def is_moving(self, topic: str) -> bool:
        """Whether this broker is the controller and moves replicas of a topic. For any thread."""
        term = self._term
        return term is not None and any(each.topic == topic for each in list(term.context.reassigning))

    @property
    def context(self) -> Context | None:
        """All that the controller knows, if this broker is it. To look at only, on the thread that calls `step`."""
        return None if self._term is None else self._term.context

    def session_is(self, store: Store, broker_epoch: int) -> None:
        """Take part in elections from now on, over a new session, in which this broker is registered."""
        self._replace_session(_Session(Candidate(self._node_id, store), store, self._watcher_of(store)))

    def resign(self) -> None:
        """Stop being the controller and taking part, until `session_is`: the session has ended, or this broker stops.

        What is under way ends without a further write. `is_active` is False when this returns.
        """
        self._replace_session(None)

    def post(self, event: Event) -> None:
        """Queue an event."""
        self._enqueue(event)

    def ask(self, request: Any, answered: Answered) -> None:
        """Queue a request (`controller_requests.py`, `topic_requests.py`); it is refused at once if not active.

        What moves is not told either while the session may have ended: another broker may be the controller by then.
        """
        session = self._session
        may_be_replaced = (
            isinstance(request, ListReassignments) and session is not None and session.store.may_have_ended
        )
        with self._lock:
            is_active = self._is_active and not may_be_replaced
            if is_active:
                self._events.append(_Ask(request, answered))
        if is_active:
            self._wake()
        else:
            answered(refusal(request, ErrorCode.NOT_CONTROLLER))

    def idle_ms(self) -> int:
        """Return how long nothing is due, in milliseconds, unless `wake` is called; 0: `step` has something to do."""
        now = self._clock.monotonic()
        due: list[float] = []
        with self._lock:
            if self._session is not self._used:
                return 0
            if self._used is not None and (self._flow is not None or self._events):
                due.append((self._retry_at - now) * 1000)
        if self._balance_at is not None:
            due.append((self._balance_at - now) * 1000)
        if self._term is not None:
            told = self._term.channels.due_ms()
            if told is not None:
                due.append(told)
        return max(0, min(NOTHING_DUE_MS, *map(int, due))) if due else NOTHING_DUE_MS

    # --- for the thread that drives it --------------------------------------------------------------------------------

    def step(self) -> bool:
        """Take an event, or carry out one command of the event that is under way. Returns whether there was one."""
        if self._take_session():
            return True
        if self._term is not None:
            self._term.channels.tick()
        if self._used is None or self._clock.monotonic() < self._retry_at:
            return False
        try:
            did = self._go_on() if self._flow is not None else self._begin()
            self._is_waiting = False
            return did
        except Moved:
            log.warning("another broker was elected as the controller")
            self._lose()
            self._enqueue(_Elect())
        except SessionExpired:
            self._lose()
            with self._lock:
                if self._session is self._used:
                    self._session = None
            self._used = None
        except StoreUnavailable as error:
            if not self._is_waiting:
                log.warning("the controller waits for the store: %s", error)
            self._is_again = self._is_waiting = True
            self._retry_at = self._clock.monotonic() + RETRY_MS / 1000
        except paths.StoreCorrupt as error:
            self._await_repair(str(error))
        except Exception:
            self._fail()
        return True

    def _take_session(self) -> bool:
        with self._lock:
            session = self._session
        if session is self._used:
            return False
        self._lose()
        self._used = session
        self._elected = None
        self._retry_at = 0.0
        if session is not None:
            self._enqueue(_Elect())
        return True

    def _begin(self) -> bool:
        """Take the next event."""
        with self._lock:
            event = self._next_locked()
        if event is None:
            return self._balance_if_due()
        try:
            self._handle(event)
        except (Moved, SessionExpired):
            raise
        except StoreUnavailable:
            # Nothing but the event itself is lost yet: it comes first again.
            with self._lock:
                self._events.appendleft(event)
            raise
        return True

    def _next_locked(self) -> Any:
        """Take the next event; None if there is none. Changes of topics that follow each other are one event."""
        taken: list[Any] = []
        while self._events and (not taken or type(taken[0]) is type(self._events[0]) is TopicsGrew):
            taken.append(self._events.popleft())
            self._queued.discard(_key(taken[-1]))
        if len(taken) < 2:
            return taken[0] if taken else None
        return TopicsGrew(frozenset(name for each in taken for name in each.names))

    def _handle(self, event: Any) -> None:
        if isinstance(event, _Elect):
            self._look_at_election()
        elif isinstance(event, BrokerRefuses):
            self._note_refusal(event.broker_id)
        elif self._term is None:
            if isinstance(event, _Ask):
                event.answered(refusal(event.request, ErrorCode.NOT_CONTROLLER))
        elif isinstance(event, _Reached):
            self._trust(event.broker_id)
            self._enqueue(BrokersChanged())
        elif isinstance(event, _ToolNode):
            self._look_at_tool_node(self._term, event)
        elif isinstance(event, _Ask):
            self._asked = event
            self._start(flow_of(self._term.context, event.request, self._around))
        elif isinstance(event, _Told):
            self._note_answer(self._term, event)
        else:
            if isinstance(event, BrokersChanged):
                self._brokers_changed_at = self._clock.monotonic()
            self._start(flow_of(self._term.context, event, self._around))

    def _start(self, flow: Rule[None]) -> None:
        self._flow = flow
        self._advance(None)

    def _go_on(self) -> bool:
        """Carry out the command that is pending, and take the next one from the rule."""
        assert self._term is not None
        result = self._carry_out(self._term, self._command)
        self._advance(result)
        return True

    def _advance(self, result: Any) -> None:
        assert self._flow is not None and self._term is not None
        self._is_again = False
        try:
            self._command = self._flow.send(result)
        except StopIteration:
            self._end_flow()
        if self._term is not None:
            self._tell_notes(self._term.context)

    def _fail(self) -> None:
        """Drop the event under way, which has met something that nobody has thought of. Others go on."""
        log.exception("the controller failed at %s", self._asked.request if self._asked else "an event")
        was_taking_over, self._is_taking_over = self._is_taking_over, False
        self._end_flow()
        if was_taking_over:
            self._retry_at = self._clock.monotonic() + FAILED_PAUSE_S
            self._give_up()

    def _await_repair(self, problem: str) -> None:
        """Look at the election again later: one of its nodes cannot be read. Who is the controller stays it."""
        if problem != self._unreadable:
            self._unreadable = problem
            log.error("no controller can be elected before this is mended: %s", problem)
        if self._term is None:
            self._enqueue(_Elect())
            self._retry_at = self._clock.monotonic() + FAILED_PAUSE_S

    def _end_flow(self) -> None:
        self._flow = None
        self._command = None
        if self._term is not None and self._term.context.waiting:
            self._enqueue(ReassignmentsWait())  # behind what has come meanwhile
        if self._brokers_changed_at is not None:
            took_s = self._clock.monotonic() - self._brokers_changed_at
            self._brokers_changed_at = None
            self.elections = self.elections._replace(
                held=self.elections.held + 1, seconds=self.elections.seconds + took_s
            )
        if self._is_taking_over and self._term is not None:
            self._is_taking_over = False
            log.info("this broker has taken over as the controller, epoch %d", self._term.context.epoch)
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.answered(refusal(asked.request, ErrorCode.UNKNOWN_SERVER_ERROR))

    def _tell_notes(self, context: Context) -> None:
        if context.unclean_elections:
            self.elections = self.elections._replace(unclean=self.elections.unclean + context.unclean_elections)
            context.unclean_elections = 0
        notes = context.notes.take()
        for note in notes[:NOTES_TOLD]:
            log.info("controller: %s", note)
        if len(notes) > NOTES_TOLD:
            log.info("controller: and %d more like these", len(notes) - NOTES_TOLD)

    def _carry_out(self, term: _Term, command: Any) -> Any:
        if term.store.carries_out(command):
            result = term.store.carry_out(command, again=self._is_again)
            return self._without_suspects(term, result) if isinstance(command, ReadBrokers) else result
        if isinstance(command, Send):
            term.channels.send(command.requests)
        elif isinstance(command, AddChannel):
            term.channels.add(command.broker)
        elif isinstance(command, RemoveChannel):
            return term.channels.remove(command.broker_id)
        else:
            assert isinstance(command, Answer) and self._asked is not None, command
            asked, self._asked = self._asked, None
            asked.answered(command.value)
        return None

    def _without_suspects(self, term: _Term, found: dict[int, Broker]) -> dict[int, Broker]:
        """Return the brokers that are believed to live. One that has registered anew is believed again."""
        for broker_id, epoch in list(self._suspects.items()):
            broker = found.get(broker_id)
            if broker is None or broker.epoch != epoch:
                self._trust(broker_id)
            else:
                term.channels.suspect(broker)
                del found[broker_id]
        return found

    # --- elections ----------------------------------------------------------------------------------------------------

    def _look_at_election(self) -> None:
        """Look who is the controller, and try to become it if nobody is."""
        assert self._used is not None
        session = self._used
        elected = session.candidate.run(session.watcher, self._clock.wall_ms())
        self._unreadable = ""
        if self._term is not None and not elected.is_of(self._term.epoch_version):
            self._lose()
        if self._elected is not None and elected.broker_id in self._gone and elected != self._elected:
            del self._gone[elected.broker_id]  # it lives after all
        before, self._elected = self._elected, elected
        if self._term is not None:
            return
        if elected.is_kraft:
            if elected != before:
                log.error(
                    "KRaft controller %d has taken the cluster over, where a kbroker cannot go along: no controller is "
                    "elected here before node %s is removed",
                    elected.broker_id,
                    paths.CONTROLLER,
                )
            self._watch_over(elected)
        elif elected.epoch_version is None:
            log.info("broker %d is the controller", elected.broker_id)
            self._watch_over(elected)
        else:
            self._take_over(session, elected.epoch, elected.epoch_version)

    def _take_over(self, session: _Session, epoch: int, epoch_version: int) -> None:
        log.info("this broker is elected as the controller, epoch %d", epoch)
        config = self._config
        context = Context(self._node_id, epoch, config.inter_broker_listener)
        store = ControllerStore(
            session.store, FencedWrites(session.store, epoch_version), session.watcher, self._allows_unclean
        )
        channels = ControlChannels(
            self._node_id,
            config.inter_broker_listener,
            config.control_plane_listener or config.inter_broker_listener,
            self._peers,
            self._clock,
            answered=lambda broker_id, request, answer: self._enqueue(_Told(broker_id, request, answer)),
            reached=lambda broker_id: self._enqueue(_Reached(broker_id)),
            wake=self._wake,
            timeout_ms=config.request_timeout_ms,
        )
        with self._lock:
            if self._session is not session:
                return
            self._is_active = True
        self._term = _Term(context, store, channels, epoch_version)
        self._suspects, self._gone = self._gone, {}
        self._is_taking_over = True
        if config.auto_leader_rebalance_enable:
            self._balance_at = self._clock.monotonic() + FIRST_BALANCE_S
        self._start(take_over(context, deletion_enabled=config.delete_topic_enable))

    def _watch_over(self, elected: Elected) -> None:
        """Keep a connection to the controller, so that its end is seen at once."""
        listener = self._config.control_plane_listener or self._config.inter_broker_listener
        endpoint = None if elected.broker_id == self._node_id else elected.endpoint(listener)
        self._peers.set_brokers({} if endpoint is None else {elected.broker_id: endpoint})
        self._peers.keep([] if endpoint is None else [elected.broker_id])

    def _note_refusal(self, broker_id: int) -> None:
        """Take a broker for dead whose process is gone: its session may last for long."""
        if broker_id == self._node_id:
            return
        if self._term is None:
            elected = self._elected
            if self._used is not None and elected is not None and elected.is_broker(broker_id):
                log.warning("nobody listens at the address of broker %d, the controller: it is deposed", broker_id)
                registered = self._used.store.exists(paths.broker_path(broker_id))
                if registered is not None:
                    self._gone[broker_id] = registered.creation_id
                self._used.candidate.depose(elected)
            return
        broker = self._term.context.brokers.get(broker_id)
        if broker is not None and self._suspects.get(broker_id) != broker.epoch:
            log.warning("nobody listens at the address of broker %d: it is taken for dead", broker_id)
            self._suspects[broker_id] = broker.epoch
            self._enqueue(BrokersChanged())

    def _trust(self, broker_id: int) -> None:
        if self._suspects.pop(broker_id, None) is not None and self._term is not None:
            self._term.channels.trust(broker_id)

    def _give_up(self) -> None:
        """Leave it to another broker to be the controller: this one has failed to take over."""
        assert self._used is not None
        elected = self._elected
        self._lose()
        if elected is not None:
            self._used.candidate.depose(elected)

    def _lose(self) -> None:
        """Stop being the controller, if this broker is it."""
        with self._lock:
            self._is_active = False
            asks = [event for event in self._events if isinstance(event, _Ask)]
            elects = [event for event in self._events if isinstance(event, _Elect | BrokerRefuses)]
            self._events = deque(elects)
            self._queued = {_key(event) for event in elects if isinstance(event, _Elect)}
        if self._asked is not None:
            asks.append(self._asked)
        self._asked = self._flow = self._command = self._brokers_changed_at = None
        self._is_again = self._is_taking_over = False
        self._balance_at = None
        self._suspects.clear()
        if self._term is not None:
            log.info("this broker is not the controller any more")
            self._term.channels.close()
            self._term = None
        for ask in asks:
            ask.answered(refusal(ask.request, ErrorCode.NOT_CONTROLLER))

    # --- events -------------------------------------------------------------------------------------------------------

    def _balance_if_due(self) -> bool:
        if self._balance_at is None or self._clock.monotonic() < self._balance_at or self._term is None:
            return False
        self._balance_at = self._clock.monotonic() + self._config.leader_imbalance_check_interval_s
        self._start(flow_of(self._term.context, Balance(), self._around))
        return True

    def _look_at_tool_node(self, term: _Term, event: _ToolNode) -> None:
        if event.kind is EventKind.CREATED:
            self._enqueue(_OF_TOOLS[event.path])
            return
        # It may have been made again before the watch is set again. Changes of it are the controller's own.
        assert self._used is not None
        there = self._used.store.exists(event.path, self._used.watcher)
        if there is not None and event.kind is EventKind.DELETED:
            self._enqueue(_OF_TOOLS[event.path])

    def _note_answer(self, term: _Term, told: _Told) -> None:
        if isinstance(told.request, LeaderAndIsr) and isinstance(told.answer, LeaderAndIsrResponse):
            context = term.context
            if not _is_news(told.answer) and told.broker_id not in context.failed and not context.left_out:
                return
            names = {topic_id: name for name, topic_id in told.request.topic_ids.items()}
            answer = roles_answer(told.broker_id, told.request, told.answer, names)
            self._start(flow_of(term.context, answer, self._around))
        elif isinstance(told.request, StopReplica) and isinstance(told.answer, StopReplicaResponse):
            self._start(flow_of(term.context, stops_answer(told.broker_id, told.request, told.answer), self._around))
        elif isinstance(told.answer, UpdateMetadataResponse) and told.answer.error_code:
            log.warning("broker %d has refused metadata: error %d", told.broker_id, told.answer.error_code)

    def _watcher_of(self, store: Store) -> Callable[[WatchEvent], None]:
        def watcher(event: WatchEvent) -> None:
            with self._lock:
                is_current = self._session is not None and self._session.store is store
            found = _event_of(event)
            if is_current and found is not None:
                self._enqueue(found)

        return watcher

    def _enqueue(self, event: Any) -> None:
        with self._lock:
            if isinstance(event, _COALESCED):
                if _key(event) in self._queued:
                    return
                self._queued.add(_key(event))
            self._events.append(event)
        self._wake()

    def _replace_session(self, session: _Session | None) -> None:
        with self._lock:
            self._session = session
            self._is_active = False
            asks = [event for event in self._events if isinstance(event, _Ask)]
            self._events.clear()
            self._queued.clear()
        for ask in asks:
            ask.answered(refusal(ask.request, ErrorCode.NOT_CONTROLLER))
        self._wake()


def _key(event: Any) -> tuple[type, Any]:
    """Return what events are compared by: without their types, all that have no fields are equal."""
    return type(event), event if isinstance(event, _COALESCED) else None


def _is_news(answer: LeaderAndIsrResponse) -> bool:
    """Return whether an answer says that replicas are in a failed directory, or that the request was refused."""
    return answer.error_code != 0 or any(
        each.error_code == ErrorCode.KAFKA_STORAGE_ERROR for topic in answer.topics for each in topic.partition_errors
    )


def _event_of(event: WatchEvent) -> Any:
    if event.path == paths.CONTROLLER:
        return _Elect()
    if event.path in _OF_TOOLS:
        return _ToolNode(event.path, event.kind)
    if event.kind is EventKind.CHILDREN:
        return _OF_CHILDREN.get(event.path)
    if event.kind is not EventKind.CHANGED:
        return None
    parent = parent_of(event.path)
    if parent == paths.BROKER_IDS:
        return BrokersChanged()
    return TopicsGrew(frozenset([event.path.removeprefix(f"{paths.TOPICS}/")])) if parent == paths.TOPICS else None
