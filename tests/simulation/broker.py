"""A broker in the simulation: the parts that are real, composed as `server/broker.py` composes them, without threads.

`Broker` is the machine with its disk and its clock; `Life` is one process on it, from its start to its end. What the
compiled request paths do on sockets (produce, fetch) is done here on the same logs, in `requests.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.cluster.image import MetadataImage
from kbroker.cluster.member_image import image_after
from kbroker.coordination import paths
from kbroker.coordination.store import NodeExists, NoNode, SessionExpired, StoreUnavailable
from kbroker.errors import KbrokerError
from kbroker.model import Endpoint, TopicPartition
from kbroker.protocol import messages as M
from tests.simulation.clocks import DriftingClock
from tests.simulation.disk import Disk
from tests.simulation.network import Caller, Failure, serving
from tests.simulation.requests import Requests
from tests.simulation.scheduler import MS, SECOND, Process, Task
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
            life.logs.abandon()
            self.simulation.checker.forget(self.node_id)

    def lose_power(self) -> None:
        life, self.life = self.life, None
        self.simulation.network.power_lost(self.name)
        if life is not None:
            life.process.end()
            life.logs.abandon()
            self.simulation.checker.forget(self.node_id)
        self.disk.lose_power(self.simulation.scheduler.chance.randrange(1 << 30))


class Peers:
    """Requests to other brokers: `cluster.peers.Peers` over the virtual network."""

    def __init__(self, life: Life):
        self._life = life
        self._callers: dict[int, Caller] = {}
        self._refused: list[Callable[[int], None]] = []

    def send(
        self, node_id: int, message: Any, version: int, answered: Callable[[Any], None], *, timeout_ms: int
    ) -> None:
        caller = self._callers.get(node_id)
        if caller is None:
            caller = self._callers[node_id] = Caller(
                self._life.network, self._life.process, f"b{node_id}", on_refused=lambda: self._tell(node_id)
            )
        name = type(message).__name__
        self._life.note(f"-> b{node_id} {name}")

        def arrived(answer: Any) -> None:
            if isinstance(answer, Failure):
                self._life.note(f"b{node_id} {name}: {answer}")
                answered(self._life.kit.peer_error(answer))
            else:
                answered(getattr(M, name.removesuffix("Request") + "Response").decode(answer, version))
            self._life.touched()

        caller.call(("message", name, version, message.encode(version)), arrived, timeout_ms * MS)

    def served(self, node_id: int, api_key: int) -> int:
        return self._life.kit.served(api_key)

    def set_brokers(self, brokers: Any) -> None:
        for node_id in [node_id for node_id in self._callers if node_id not in brokers]:
            self._callers.pop(node_id).close()

    def on_refused(self, callback: Callable[[int], None]) -> None:
        self._refused.append(callback)

    def _tell(self, node_id: int) -> None:
        self._life.note(f"b{node_id} refuses")
        for callback in self._refused:
            callback(node_id)
        self._life.touched()


class Metadata:
    """A member's metadata: what UpdateMetadata makes of it; `surroundings.Metadata`."""

    def __init__(self, life: Life):
        self._life = life
        self.image = MetadataImage(CLUSTER_ID)
        self.broker_epoch = -1

    def update(self, request: Any) -> Iterable[int]:
        self.image = image_after(self.image, request, lambda names: {}).image
        return self.image.brokers.keys()


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
        self.metadata = Metadata(self)
        self.peers = Peers(self)
        self.session: Session | None = None
        self.stops = False
        self.logs = self.kit.logs(self)
        self.fetchers = self.kit.fetchers(self)
        self.partitions = self.kit.partitions(self)
        self.controller = self.kit.controller(self)
        self.requests = Requests(self)
        self._callbacks: deque[Callable[[], None]] = deque()
        self._events: Task | None = None
        self._controls: Task | None = None
        self._controls_are_idle = False
        self._is_touched = False

    def note(self, text: str) -> None:
        self.simulation.note(self.process.name, text)

    def log(self, at: TopicPartition) -> Any:
        return self.logs.get(at)

    # --- start and stop

    def start(self) -> None:
        self.note("starts")
        self.network.listen(self.process, serving(lambda peer, request, respond: self._serve(request, respond)))
        self._events = Task(self.process, self._run_callbacks, f"{self.process.name} events")
        self._events.start()
        self._controls = Task(self.process, self._control, f"{self.process.name} controller")
        self._controls.start()
        self._open_session()
        self._tick()
        self.after(CHECKPOINT_INTERVAL, self._checkpoint)

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Let an action happen later in this life."""

        def act() -> None:
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
        news = self.logs.take_news()
        if news:
            self.partitions.on_news(news)
        self.requests.settle()
        self.wake_controller()

    # --- the session

    def _open_session(self) -> None:
        self.session = Session(self.simulation.tree, self.process, SESSION_TIMEOUT, connected=self._connected)
        self.session.deliver = self._deliver
        self.session.on_end(self._session_ended)

    def _connected(self, session: Session) -> None:
        task = Task(self.process, lambda: self._register(session), f"{self.process.name} registers")
        task.start()

    def _register(self, session: Session) -> None:
        """Be in the tree: with the node of this session, once that of an earlier one is gone."""
        path = paths.broker_path(self.node_id)
        data = paths.encode_broker(
            paths.BrokerRegistration(
                (Endpoint("PLAINTEXT", "PLAINTEXT", self.process.name, 9092),), None, self.clock.wall_ms()
            )
        )
        while True:
            try:
                try:
                    session.create(path, data, ephemeral=True)
                except NodeExists:
                    pass
                _, stat = session.get(path)
                if stat.owner == session.session_id:
                    break
            except (StoreUnavailable, NoNode):
                pass
            except SessionExpired:
                return
            self.sleep(500 * MS)
        self.note(f"is registered, epoch {stat.creation_id}")
        self.metadata.broker_epoch = stat.creation_id
        self.kit.session_is(self, session, stat.creation_id)
        self.touched()

    def sleep(self, delay: float) -> None:
        """Wait, in a task."""
        task = next(task for task in self.process.tasks if task.is_current)
        self.scheduler.after(delay, lambda: task.answer(None), self.process)
        task.wait()

    def _session_ended(self) -> None:
        self.note("the session has expired")
        self.kit.session_ended(self)
        self._open_session()
        self.touched()

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
        if self._controls_are_idle:
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
            assert self._controls is not None
            self._controls.wait()

    # --- timers

    def _tick(self) -> None:
        delay_ms = self.partitions.tick()
        self.after(max(1, min(delay_ms, 1000)) * MS, self._tick)

    def _checkpoint(self) -> None:
        try:
            self.logs.write_checkpoints()
        except (OSError, KbrokerError) as error:
            self.note(f"no checkpoint: {error}")
        self.after(CHECKPOINT_INTERVAL, self._checkpoint)

    # --- requests

    def _serve(self, request: Any, respond: Callable[[Any], None]) -> None:
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
        version = min(highest_version, self.kit.served(api_key))

        def arrived(answer: Any) -> None:
            if isinstance(answer, M.Message):
                answered(answer, version)
            else:
                answered(None, -1)

        self.peers.send(controller_id, make(version), version, arrived, timeout_ms=ASK_TIMEOUT // MS)
