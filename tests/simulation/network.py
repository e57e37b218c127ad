"""A virtual network: connections that keep their order, and between them anything: delays, cuts, resets, refusals.

A machine is known by its name. What is sent while its way is cut is kept by the connection, as TCP does, and arrives
when the way is open again, unless one of the ends has given up meanwhile. A killed process's machine tells its peers
at once that a connection is gone; a machine without power tells nobody anything before it is on again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kbroker.cluster.peers import STARTING_S
from tests.simulation.scheduler import MS, SECOND, Action, Event, Process, Scheduler

BROKEN = object()
"""The last thing that arrives on a connection which the other end has closed."""


class Side:
    """One end of a connection, and what is on its way to it."""

    __slots__ = ("arrive", "last", "pending", "process")

    def __init__(self, process: Process, arrive: Callable[[Any], None]):
        self.process = process
        self.arrive = arrive
        self.pending: deque[tuple[int, Any]] = deque()
        self.last = 0
        """When the youngest of the things on their way arrives: nothing overtakes it."""


class Connection:
    """Two ends. `send` never waits; nothing arrives after BROKEN, nor at an end that has closed."""

    def __init__(self, network: Network, near: Side, far: Side):
        self._network = network
        self.sides = (near, far)
        self.is_open = [True, True]

    def send(self, end: int, thing: Any) -> None:
        """Send from the end with this number (0: who has connected) to the other one."""
        if not self.is_open[end]:
            return
        other = self.sides[1 - end]
        network = self._network
        delay = network.delay(self.sides[end].process.name, other.process.name)
        other.last = max(other.last + 1, network.scheduler.now + delay)
        other.pending.append((other.last, thing))
        network.scheduler.after(other.last - network.scheduler.now, lambda: self.deliver(1 - end))

    def close(self, end: int) -> None:
        """Close one end; the other one learns it behind what was sent to it before."""
        if self.is_open[end]:
            self.send(end, BROKEN)
            self.is_open[end] = False
            self._network.forget(self)

    def reset(self) -> None:
        """Break the connection: what is on its way is lost, and both ends learn it."""
        for end, side in enumerate(self.sides):
            side.pending.clear()
            if self.is_open[end]:
                side.pending.append((0, BROKEN))
                self._network.scheduler.after(0, lambda end=end: self.deliver(end))

    def abandon(self, end: int) -> None:
        """Close one end without telling the other one: its machine has lost its power."""
        self.is_open[end] = False

    def deliver(self, end: int) -> None:
        """Let arrive what is due at an end, if the way to it is open."""
        side, source = self.sides[end], self.sides[1 - end].process.name
        while side.pending and side.pending[0][0] <= self._network.scheduler.now:
            if self._network.is_cut(source, side.process.name):
                return
            _, thing = side.pending.popleft()
            if side.process.is_paused:
                side.process.backlog.append(lambda thing=thing: self._arrive(end, thing))
            elif side.process.is_alive:
                self._arrive(end, thing)

    def _arrive(self, end: int, thing: Any) -> None:
        if not self.is_open[end]:
            return
        if thing is BROKEN:
            self.is_open[end] = False
            self._network.forget(self)
        self.sides[end].arrive(thing)


@dataclass
class Weather:
    """How long things take on the network, in microseconds."""

    least: int = 200
    most: int = 2 * MS
    spike_share: float = 0.02
    spike: int = 200 * MS


@dataclass
class Machine:
    """What the network knows of a machine: whether it has power, and which process listens on it."""

    is_on: bool = True
    listener: Process | None = None
    accept: Callable[[Process, Connection], Callable[[Any], None]] | None = None
    """Called with who connects, and the connection, whose end 1 is this process's. Returns what things arrive at."""


class Refusal(Enum):
    """Why no connection came about."""

    REFUSED = "refused"
    SILENCE = "silence"


@dataclass
class Network:
    """All machines and connections."""

    scheduler: Scheduler
    weather: Weather = field(default_factory=Weather)
    machines: dict[str, Machine] = field(default_factory=dict)
    cuts: set[tuple[str, str]] = field(default_factory=set)
    """Ways that are cut, as (from, to)."""
    lies: set[tuple[str, str]] = field(default_factory=set)
    """(who connects, to whom): the port refuses, although somebody listens."""
    connections: dict[Connection, None] = field(default_factory=dict)

    def delay(self, source: str, target: str) -> int:
        weather, chance = self.weather, self.scheduler.chance
        if weather.spike_share and chance.random() < weather.spike_share:
            return chance.randrange(weather.most, weather.spike)
        return chance.randrange(weather.least, weather.most)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self.cuts

    def cut(self, source: str, target: str) -> None:
        self.cuts.add((source, target))

    def mend(self, source: str, target: str) -> None:
        """Open a way again; what has waited at the cut arrives."""
        self.cuts.discard((source, target))
        for connection in list(self.connections):
            for end in (0, 1):
                ends = connection.sides[1 - end].process.name, connection.sides[end].process.name
                if ends == (source, target):
                    self.scheduler.after(self.delay(source, target), lambda c=connection, e=end: c.deliver(e))

    def machine(self, name: str) -> Machine:
        return self.machines.setdefault(name, Machine())

    def listen(self, process: Process, accept: Callable[[Process, Connection], Callable[[Any], None]]) -> None:
        machine = self.machine(process.name)
        machine.listener, machine.accept = process, accept

    def connect(
        self,
        process: Process,
        target: str,
        arrive: Callable[[Any], None],
        connected: Callable[[Connection | Refusal], None],
        *,
        timeout: int = 2 * SECOND,
    ) -> None:
        """Try to connect; `connected` is told once, with the connection or why there is none.

        Silence (no power, a cut) is told after `timeout`.
        """
        source = process.name
        lasts = self.delay(source, target) + self.delay(target, source)

        def arrived() -> None:
            machine = self.machine(target)
            if not machine.is_on or self.is_cut(source, target) or self.is_cut(target, source):
                self.scheduler.after(max(0, timeout - lasts), lambda: connected(Refusal.SILENCE), process)
                return
            listener = machine.listener
            if listener is None or not listener.is_alive or (source, target) in self.lies:
                connected(Refusal.REFUSED)
                return
            assert machine.accept is not None
            near, far = Side(process, arrive), Side(listener, lambda thing: None)
            connection = Connection(self, near, far)
            self.connections[connection] = None
            far.arrive = machine.accept(process, connection)
            connected(connection)

        self.scheduler.after(lasts, arrived, process)

    def forget(self, connection: Connection) -> None:
        """Drop a connection whose both ends are closed."""
        if not any(connection.is_open):
            self.connections.pop(connection, None)

    def of(self, name: str) -> list[tuple[Connection, int]]:
        """The open connections of a machine, and which end is its."""
        return [
            (connection, end)
            for connection in self.connections
            for end, side in enumerate(connection.sides)
            if side.process.name == name
        ]

    def process_ended(self, process: Process) -> None:
        """The machine closes the connections of a process that was killed: its peers learn that soon."""
        for connection, end in self.of(process.name):
            if connection.sides[end].process is process:
                connection.close(end)

    def power_lost(self, name: str) -> None:
        """The machine is off: nobody is told."""
        self.machine(name).is_on = False
        for connection, end in self.of(name):
            connection.abandon(end)

    def power_back(self, name: str) -> None:
        """The machine is on again, and answers to connections of its former life that it knows nothing of them."""
        self.machine(name).is_on = True
        for connection, end in self.of(name):
            if not connection.is_open[end]:
                other = connection.sides[1 - end]
                if connection.is_open[1 - end]:
                    other.pending.append((self.scheduler.now, BROKEN))
                    self.scheduler.after(
                        self.delay(name, other.process.name), lambda c=connection, e=1 - end: c.deliver(e)
                    )
                else:
                    self.connections.pop(connection, None)


@dataclass(frozen=True)
class Failure:
    """Why a call has no answer. `is_refused`: the port refuses. `is_sent`: the request may have been carried out."""

    is_refused: bool
    is_sent: bool

    def __str__(self) -> str:
        return "refused" if self.is_refused else "lost" if self.is_sent else "no connection"


Answered = Callable[[Any], None]
RECONNECT_DELAY = 200 * MS
STARTING = round(STARTING_S * SECOND)
"""How long a port that was never reached may refuse before its process is taken for gone."""
Serve = Callable[[Process, Any, Answered], None]
"""Carries out a request of a process, and calls back with the answer, once, at any time."""


def serving(serve: Serve) -> Callable[[Process, Connection], Callable[[Any], None]]:
    """What a listener accepts connections with, to serve the calls of `Caller`."""

    def accept(peer: Process, connection: Connection) -> Callable[[Any], None]:
        def arrive(thing: Any) -> None:
            if thing is not BROKEN:
                number, request = thing
                serve(peer, request, lambda answer: connection.send(1, (number, answer)))

        return arrive

    return accept


@dataclass
class _Call:
    request: Any
    answered: Answered
    timer: Event | None = None
    is_sent: bool = False


class Caller:
    """Calls one machine over one connection at a time, in order. It connects when there is something to send."""

    def __init__(self, network: Network, process: Process, target: str, *, on_refused: Action = lambda: None):
        self._network, self._process, self._target = network, process, target
        self._on_refused = on_refused
        """Called once when nobody listens any more: the port refuses. One that was never reached may be starting, so it
        has to refuse for STARTING."""
        self._connection: Connection | None = None
        self._is_connecting = False
        self._is_reached = False
        self._refuses_since: int | None = None
        self._is_told = False
        self.is_kept = False
        """Whether the connection is opened again whenever it breaks, also if there is nothing to send."""
        self._calls: dict[int, _Call] = {}
        self._next = 0

    def call(self, request: Any, answered: Answered, timeout: int) -> None:
        """Send a request; `answered` is called once, with the answer or a Failure."""
        self._next += 1
        number = self._next
        call = self._calls[number] = _Call(request, answered)
        call.timer = self._network.scheduler.after(timeout, self._timed_out, self._process)
        if self._connection is not None:
            self._send(number, call)
        elif not self._is_connecting:
            self._connect()

    def keep(self) -> None:
        """Keep a connection open from now on."""
        self.is_kept = True
        if self._connection is None and not self._is_connecting:
            self._connect()

    def _again(self) -> None:
        if self.is_kept and self._connection is None and not self._is_connecting:
            self._connect()

    def _send(self, number: int, call: _Call) -> None:
        assert self._connection is not None
        call.is_sent = True
        self._connection.send(0, (number, call.request))

    def _connect(self) -> None:
        self._is_connecting = True
        self._network.connect(self._process, self._target, self._arrive, self._connected)

    def _connected(self, result: Connection | Refusal) -> None:
        self._is_connecting = False
        if isinstance(result, Connection):
            self._is_reached, self._refuses_since, self._is_told = True, None, False
            self._connection = result
            for number, call in list(self._calls.items()):
                self._send(number, call)
            return
        self._fail(is_refused=result is Refusal.REFUSED)
        if self.is_kept:
            self._network.scheduler.after(RECONNECT_DELAY, self._again, self._process)
        if result is not Refusal.REFUSED:
            self._refuses_since = None
            return
        now = self._network.scheduler.now
        if self._refuses_since is None:
            self._refuses_since = now
        if not self._is_told and (self._is_reached or now - self._refuses_since >= STARTING):
            self._is_told = True
            self._on_refused()

    def _arrive(self, thing: Any) -> None:
        if thing is BROKEN:
            self._connection = None
            self._fail(is_refused=False)
            # Whoever had a connection tries again at once, and so learns whether the process is gone.
            if not self._is_connecting:
                self._connect()
            return
        number, answer = thing
        call = self._calls.pop(number, None)
        if call is not None:
            assert call.timer is not None
            call.timer.cancel()
            call.answered(answer)

    def _timed_out(self) -> None:
        """Give up on the connection, as clients do: an answer that is late could be taken for another one's."""
        if self._connection is not None:
            self._connection.close(0)
            self._connection = None
        self._fail(is_refused=False)
        self._again()

    def close(self) -> None:
        self.is_kept = False
        self._timed_out()

    def _fail(self, *, is_refused: bool) -> None:
        calls, self._calls = self._calls, {}
        for call in calls.values():
            assert call.timer is not None
            call.timer.cancel()
        for call in calls.values():
            call.answered(Failure(is_refused, call.is_sent))
