"""A broker in the simulation: the parts that are real, composed as `server/broker.py` composes them, without threads.

`Broker` is the machine with its disk and its clock; `Life` is one process on it, from its start to its end. What the
compiled request paths do on sockets (produce, fetch) is done here on the same logs, in `requests.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.cluster.peers import PeerError
from kbroker.errors import KbrokerError
from kbroker.model import Endpoint, TopicPartition
from kbroker.protocol import messages as M
from tests.simulation.clocks import DriftingClock
from tests.simulation.disk import Disk
from tests.simulation.network import Caller, Failure, serving
from tests.simulation.requests import Requests
from tests.simulation.scheduler import MS, SECOND, Event, Process, Task
from tests.simulation.tree import Session

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

SESSION_TIMEOUT = 6 * SECOND
CLUSTER_ID = "simulatedclustersimula"
ASK_TIMEOUT = 10 * SECOND
CHECKPOINT_INTERVAL = 5 * SECOND


@dataclass
class Broker:
    """One machine: what outlives the processes on it."""

    simulation: Simulation
    node_id: int
    home: Path
    clock: DriftingClock = field(init=False)
    disk: Disk = field(init=False)
    life: Life | None = None
    life_count: int = 0

    def __post_init__(self) -> None:
        self.clock = DriftingClock(self.simulation.scheduler)
        self.disk = Disk(self.home)

    @property
    def name(self) -> str:
        return f"b{self.node_id}"

    def start(self) -> None:
        """Start a process, if none lives."""
        if self.life is None:
            self.simulation.network.power_back(self.name)
            self.life_count += 1
            self.life = Life(self)
            self.life.start()

    def kill(self) -> None:
        """End the process, as SIGKILL does: what it has written stays."""
        life, self.life = self.life, None
        if life is not None:
            life.process.end()
            self.simulation.network.process_ended(life.process)
            life.abandon()
            self.simulation.checker.forget(self.node_id)

    def stop(self, pause: int) -> None:
        """Stop the process as SIGTERM does: it hands over what it leads. Another one is started after `pause`."""
        life = self.life
        if life is not None and life.is_serving and not life.is_stopping:
            life.is_stopping = True
            life.task(lambda: life.leave(pause), "stop")

    def lose_power(self) -> None:
        life, self.life = self.life, None
        self.simulation.network.power_lost(self.name)
        if life is not None:
            life.process.end()
            life.abandon()
            self.simulation.checker.forget(self.node_id)
        self.disk.lose_power(self.simulation.scheduler.chance.randrange(1 << 30))


class Peers:
    """Requests to other brokers: `cluster.peers.Peers` over the virtual network."""

    def __init__(self, life: Life):
        self._life = life
        self._callers: dict[int, Caller] = {}
        self._refused: list[Callable[[int], None]] = []
        self._brokers: Mapping[int, Endpoint] | None = None
        """None: all are known."""

    def send(
        self, node_id: int, message: Any, version: int, answered: Callable[[Any], None], *, timeout_ms: int
    ) -> None:
        life = self._life
        name = type(message).__name__
        if self._brokers is not None and node_id not in self._brokers:
            life.after(0, lambda: answered(PeerError(node_id, "its address is not known")))
            return
        life.note(f"-> b{node_id} {name} {brief(message)}")

        def arrived(answer: Any) -> None:
            if isinstance(answer, Failure):
                life.note(f"b{node_id} {name}: {answer}")
                answered(PeerError(node_id, str(answer), sent=answer.is_sent, refused=answer.is_refused))
            else:
                response = getattr(M, name.removesuffix("Request") + "Response").decode(answer, version)
                if brief(response):
                    life.note(f"<- b{node_id} {type(response).__name__} {brief(response)}")
                answered(response)
            life.touched()

        self._caller(node_id).call(("message", name, version, message.encode(version)), arrived, timeout_ms * MS)

    def ask(
        self,
        node_id: int,
        make: Callable[[int], Any],
        api_key: int,
        highest_version: int,
        answered: Callable[[Any, int], None],
        *,
        timeout_ms: int,
    ) -> None:
        version = min(highest_version, self._life.kit.served(api_key))

        def arrived(answer: Any) -> None:
            answered(answer, -1 if isinstance(answer, PeerError) else version)

        self.send(node_id, make(version), version, arrived, timeout_ms=timeout_ms)

    def served(self, node_id: int, api_key: int) -> int:
        return self._life.kit.served(api_key)

    def set_brokers(self, brokers: Mapping[int, Endpoint]) -> None:
        self._brokers = dict(brokers)
        for node_id in [node_id for node_id in self._callers if node_id not in brokers]:
            self._callers.pop(node_id).close()

    def keep(self, node_ids: Collection[int]) -> None:
        for node_id in sorted(node_ids):
            self._caller(node_id).keep()
        for node_id, caller in self._callers.items():
            if node_id not in node_ids:
                caller.is_kept = False

    def on_refused(self, callback: Callable[[int], None]) -> None:
        self._refused.append(callback)

    def _caller(self, node_id: int) -> Caller:
        caller = self._callers.get(node_id)
        if caller is None:
            caller = self._callers[node_id] = Caller(
                self._life.network, self._life.process, f"b{node_id}", on_refused=lambda: self._tell(node_id)
            )
        return caller

    def _tell(self, node_id: int) -> None:
        self._life.note(f"b{node_id} refuses")
        for callback in self._refused:
            callback(node_id)
        self._life.touched()


def brief(message: Any) -> str:
    """What a control request or its answer says, for people."""
    told = []
    if code := getattr(message, "error_code", 0):
        told.append(f"error {code}")
    if isinstance(message, M.LeaderAndIsrRequest):
        told += [
            f"{topic.topic_name}-{each.partition_index} leader {each.leader}/{each.leader_epoch} of {each.isr}"
            f" v{each.partition_epoch}"
            for topic in message.topic_states
            for each in topic.partition_states
        ]
    elif isinstance(message, M.StopReplicaRequest):
        told += [
            f"{topic.topic_name}-{each.partition_index}/{each.leader_epoch}{' delete' if each.delete_partition else ''}"
            for topic in message.topic_states
            for each in topic.partition_states
        ]
    elif isinstance(message, M.UpdateMetadataRequest):
        told.append(f"{[each.id for each in message.live_brokers]} alive")
    elif isinstance(message, M.AlterPartitionRequest):
        told += [
            f"{each.partition_index}/{each.leader_epoch} v{each.partition_epoch}"
            f" {each.new_isr or [(at.broker_id, at.broker_epoch) for at in each.new_isr_with_epochs]}"
            for topic in message.topics
            for each in topic.partitions
        ]
    elif isinstance(message, M.AlterPartitionResponse):
        told += [
            f"{each.partition_index}/{each.leader_epoch} v{each.partition_epoch} {each.isr} error {each.error_code}"
            for topic in message.topics
            for each in topic.partitions
        ]
    elif isinstance(message, M.LeaderAndIsrResponse | M.StopReplicaResponse):
        codes = {
            each.error_code
            for part in (getattr(message, "topics", None) or [message])
            for each in part.partition_errors
        }
        told += [f"error {code}" for code in sorted(codes) if code]
    return "; ".join(told)


class Life:
    """One process of a broker."""

    def __init__(self, broker: Broker):
        self.broker = broker
        self.node_id = broker.node_id
        self.simulation = broker.simulation
        self.network, self.scheduler = self.simulation.network, self.simulation.scheduler
        self.kit = self.simulation.kit
        self.clock = broker.clock
        self.process = Process(broker.name)
        self.metadata: Any = None
        """The topics as this member knows them. None before it has joined, as what follows."""
        self.peers = Peers(self)
        self.session: Session | None = None
        self.membership: Any = None
        self.logs: Any = None
        self.partitions: Any = None
        self.producer_ids: Any = None
        self.fetchers = self.kit.fetchers(self)
        self.controller = self.kit.controller(self)
        self.requests = Requests(self)
        self._callbacks: deque[Callable[[], None]] = deque()
        self._events: Task | None = None
        self._controls: Task | None = None
        self._controls_are_idle = False
        self._alarm = Event(None, None)
        self._checkpoints = 0
        self._early: list[tuple[Any, Callable[[Any], None]]] | None = []
        """Requests that have come before this broker is registered; None from then on."""
        self._is_touched = False
        self.is_stopping = False
        self.has_left = False
        """Whether it has ended its session, as the last of a clean stop but for its logs."""

    @property
    def is_serving(self) -> bool:
        return self._early is None

    def note(self, text: str) -> None:
        self.simulation.note(self.process.name, text)

    def abandon(self) -> None:
        """Leave the logs as a killed process does."""
        if self.logs is not None:
            self.logs.abandon()

    def log(self, at: TopicPartition) -> Any:
        return self.logs.get(at) if self.logs is not None else None

    # --- start and stop

    def start(self) -> None:
        self.note("starts")
        self._events = Task(self.process, self._run_callbacks, f"{self.process.name} events")
        self._events.start()
        self._controls = Task(self.process, self._control, f"{self.process.name} controller")
        self._controls.start()
        self.task(lambda: self.kit.join(self), "membership")

    def listen(self) -> None:
        """Open the port; called once the logs are open. What comes waits for `serve`."""
        self.network.listen(self.process, serving(lambda peer, request, respond: self._serve(request, respond)))

    def serve(self) -> None:
        """Begin to serve; called once the broker is registered, so that it knows requests for a former life."""
        self.after(0, self._serve_early)
        self.partitions.on_due = self.touched
        self._tick()
        self.after(CHECKPOINT_INTERVAL, self._checkpoint)

    def _serve_early(self) -> None:
        """Serve what came too early, where all requests are served: a task may have to wait in the middle of one."""
        early, self._early = self._early or [], None
        for request, respond in early:
            self._serve(request, respond)

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Let an action happen later in this life."""

        def act() -> None:
            self.set_clock()
            action()
            self.touched()

        self.scheduler.after(delay, act, self.process)

    def touched(self) -> None:
        """Note that something happened here: acks may be due, the controller may have work, the checker looks."""
        if not self._is_touched:
            self._is_touched = True
            self.simulation.touched.append(self)

    def settle(self) -> None:
        """Called after each step that has touched this life."""
        self._is_touched = False
        if self.logs is not None:
            while self.fetchers.step():
                pass
            news = self.logs.take_news()
            if news:
                self.partitions.on_news(news)
            self.requests.settle()
        self.wake_controller()

    def set_clock(self) -> None:
        """Let the compiled code see this machine's clock."""
        if self.logs is not None:
            self.logs.set_clock_ms(self.clock.monotonic_ms())

    def new_peers(self) -> Peers:
        """Connections of their own to the other brokers."""
        return Peers(self)

    def leave(self, pause: int) -> None:
        """Stop cleanly, end this process, and have another one started after `pause`."""
        self.kit.leave(self)
        broker = self.broker
        self.scheduler.after(0, lambda: broker.kill() if broker.life is self else None)
        self.scheduler.after(pause + 1, broker.start)

    def give_up(self) -> None:
        """End this process, as one that cannot go on; it is started again in a moment."""
        broker = self.broker
        self.scheduler.after(0, lambda: broker.kill() if broker.life is self else None)
        self.scheduler.after(SECOND, broker.start)

    # --- the session

    def open_session(self, connected: Callable[[Session], None] = lambda session: None) -> Session:
        """Begin a session of this process; `connected` is called once it is there."""
        session = self.session = Session(self.simulation.tree, self.process, SESSION_TIMEOUT, connected=connected)
        session.deliver = self._deliver
        return session

    def task(self, body: Callable[[], None], name: str) -> Task:
        """Run `body` as a thread of this process does."""
        task = Task(self.process, body, f"{self.process.name} {name}")
        task.start()
        return task

    def sleep(self, delay: float) -> None:
        """Wait, in a task."""
        task = next(task for task in self.process.tasks if task.is_current)
        self.scheduler.after(delay, lambda: task.answer(None), self.process)
        task.wait()

    def _deliver(self, callback: Callable[[], None]) -> None:
        """Run a callback on the event thread, after those before it."""
        self._callbacks.append(callback)
        self.scheduler.after(0, self._wake_events, self.process)

    def _wake_events(self) -> None:
        assert self._events is not None
        if self._events.is_waiting and self._callbacks and self._events_are_idle:
            self._events.answer(None)

    _events_are_idle = False

    def _run_callbacks(self) -> None:
        task = self._events
        while True:
            while self._callbacks:
                self._callbacks.popleft()()
                self.touched()
            self._events_are_idle = True
            (task or self._events).wait()  # type: ignore[union-attr]
            self._events_are_idle = False

    # --- the controller's thread

    def wake_controller(self) -> None:
        if self._controls_are_idle and self.kit.controller_idle_ms(self) == 0:
            self._controls_are_idle = False
            assert self._controls is not None
            task = self._controls
            self.scheduler.after(20, lambda: task.answer(None), self.process)

    def _control(self) -> None:
        while True:
            steps = 0
            while self.kit.control(self):
                steps += 1
                self.touched()
                assert steps < 100_000, "the controller never comes to an end"
            self._controls_are_idle = True
            self._alarm.cancel()
            delay = max(1, self.kit.controller_idle_ms(self)) * MS
            self._alarm = self.scheduler.after(delay, self.wake_controller, self.process)
            assert self._controls is not None
            self._controls.wait()

    # --- timers

    def _tick(self) -> None:
        delay_ms = self.partitions.tick()
        self.after(max(1, min(delay_ms, 1000)) * MS, self._tick)

    def _checkpoint(self) -> None:
        self._checkpoints += 1
        try:
            self.logs.write_checkpoints(everything=self._checkpoints % 3 == 0)
        except (OSError, KbrokerError) as error:
            self.note(f"no checkpoint: {error}")
        self.after(CHECKPOINT_INTERVAL, self._checkpoint)

    # --- requests

    def _serve(self, request: Any, respond: Callable[[Any], None]) -> None:
        if self._early is not None:
            self._early.append((request, respond))
            return
        self.set_clock()
        self.requests.serve(request, respond)
        self.touched()

    def ask_controller(
        self, make: Callable[[int], Any], api_key: int, highest_version: int, answered: Callable[[Any, int], None]
    ) -> None:
        """`surroundings.AskController`."""
        controller_id = self.metadata.image.controller_id
        if controller_id < 0:
            self.after(50 * MS, lambda: answered(None, -1))
            return

        def arrived(answer: Any, version: int) -> None:
            answered(None if isinstance(answer, PeerError) else answer, version)

        self.peers.ask(controller_id, make, api_key, highest_version, arrived, timeout_ms=ASK_TIMEOUT // MS)
