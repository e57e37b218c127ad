"""What goes wrong, and when. Everything stays within what is promised: see docs/REPLICATION.md.

Faults that lose nothing (kills, pauses, cuts, refusals, full disks, lost answers) come in any number at once. What
takes records from a disk (a power cut without fsync before ack, a new disk) comes alone: everything is whole before,
and nothing else happens before all is whole again. With fsync before ack power goes at any time, and everywhere at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.scheduler import MS, SECOND
from tests.simulation.tree import TREE

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.simulation import Simulation

WHOLE_LIMIT = 60 * SECOND
ADMIN = "admin"
"""In a plan: the administrator is at work beside the faults."""
IDS = "ids"
"""In a plan: new producers take ids beside the faults."""


class Faults:
    """The faults of one history, drawn from its seed."""

    def __init__(self, simulation: Simulation):
        self._simulation = simulation
        self.is_over = True
        self._mends: dict[int, Callable[[], None]] = {}
        self._count = 0
        self._is_alone = False
        """Whether a fault is under way that comes alone: nothing else happens."""

    @property
    def _chance(self):  # type: ignore[no-untyped-def]
        return self._simulation.scheduler.chance

    def begin(self, duration: int) -> None:
        """Make faults for so long. Clocks are wrong from the beginning."""
        self.is_over = False
        if "clock" in self._simulation.plan.faults:
            for broker in self._simulation.brokers.values():
                broker.clock.drift(self._chance.choice((0.95, 0.99, 1.0, 1.01, 1.05)))
        self._later(self._chance.randrange(1, 2 * SECOND))
        if ADMIN in self._simulation.plan.faults:
            self._administrate()

    def end(self) -> None:
        """Mend everything and start every broker."""
        self.is_over = True
        for mend in list(self._mends.values()):
            mend()
        self._mends.clear()
        simulation = self._simulation
        simulation.tree.lost_answers = 0.0
        for broker in simulation.brokers.values():
            broker.disk.is_full = False
            broker.start()

    def _later(self, delay: float) -> None:
        self._simulation.scheduler.after(delay, self._next)

    def _next(self) -> None:
        if self.is_over:
            return
        kinds = [kind for kind in self._simulation.plan.faults if kind not in (ADMIN, IDS)]
        if not kinds:
            return
        kind = self._chance.choice(kinds)
        if kind in ("empty", "damage") or (kind == "power" and not self._simulation.plan.flushes):
            self._alone(kind)
            return
        self._make(kind)
        self._later(self._chance.randrange(50 * MS, int(1.5 * SECOND)))

    def _make(self, kind: str) -> None:
        getattr(self, f"_{kind.replace('-', '_')}")()

    def _lasting(self, duration: int, mend: Callable[[], None]) -> None:
        """Undo a fault after a while, or when the faults end."""
        self._count += 1
        number = self._count

        def over() -> None:
            if self._mends.pop(number, None) is not None:
                mend()

        self._mends[number] = mend
        self._simulation.scheduler.after(duration, over)

    def _broker(self) -> Broker:
        return self._simulation.brokers[self._chance.choice(sorted(self._simulation.brokers))]

    def _duration(self) -> int:
        return self._chance.choice(
            (self._chance.randrange(10 * MS, SECOND), self._chance.randrange(SECOND, 12 * SECOND))
        )

    def _note(self, text: str) -> None:
        self._simulation.note("", text)

    # --- faults that come alone

    def _alone(self, kind: str) -> None:
        """Mend all, wait until all is whole, let it happen, wait again."""
        self._is_alone = True
        simulation = self._simulation
        for mend in list(self._mends.values()):
            mend()
        self._mends.clear()
        simulation.tree.lost_answers = 0.0
        for broker in simulation.brokers.values():
            broker.start()
        deadline = simulation.scheduler.now + WHOLE_LIMIT

        def wait(then: Callable[[], None]) -> None:
            if self.is_over:
                return
            if simulation.is_whole() and simulation.administrator.is_idle:
                then()
            elif simulation.scheduler.now < deadline:
                simulation.scheduler.after(200 * MS, lambda: wait(then))
            else:
                self._note(f"never whole: {simulation.why()}")
                then()

        def over() -> None:
            self._is_alone = False
            self._later(SECOND)

        def happen() -> None:
            if not simulation.is_whole():
                over()
                return
            broker = self._broker()
            is_spread = all(len(replicas) > 2 for _, _, replicas in simulation.partitions())
            if kind != "damage" and is_spread and self._chance.random() < 0.5:
                # Any one broker and the controller: the next controller finds brokers that have come back meanwhile.
                delay = self._chance.randrange(1, 6 * SECOND)
                simulation.scheduler.after(delay, lambda: self._lose_controller(broker))
            if kind == "power":
                self._power_of(broker)
            elif kind == "damage":
                self._damage(broker)
            else:
                self._note(f"{broker.name} gets an empty disk")
                if self._chance.random() < 0.5:
                    broker.kill()
                else:
                    broker.lose_power()
                broker.disk.empty()
                simulation.scheduler.after(self._chance.choice((1, 50 * MS, 3 * SECOND, 10 * SECOND)), broker.start)
            simulation.scheduler.after(11 * SECOND, lambda: wait(over))

        wait(happen)

    def _lose_controller(self, but: Broker) -> None:
        """Pause the controller for long, or kill it, unless it is this broker."""
        for broker in self._simulation.brokers.values():
            life = broker.life
            if broker is not but and life is not None and life.controller.is_active and not life.process.is_paused:
                if self._chance.random() < 0.3:
                    self._kill_for_a_while(broker)
                else:
                    self._pause_for(broker, self._chance.randrange(4 * SECOND, 10 * SECOND))
                return

    def _damage(self, victim: Broker) -> None:
        """All are killed, one has lost records when it starts again, and any of them may be the first to start."""
        brokers = list(self._simulation.brokers.values())
        for broker in brokers:
            broker.kill()
        if self._chance.random() < 0.3:
            self._note(f"all are killed, and {victim.name} gets an empty disk")
            victim.disk.empty()
        else:
            self._note(f"all are killed, and {victim.name} has a flipped bit in {victim.disk.damage(self._chance)}")
        for broker in brokers:
            delay = self._chance.choice((1, 50 * MS, SECOND, 8 * SECOND))
            self._simulation.scheduler.after(delay, broker.start)

    def _power_of(self, broker: Broker) -> None:
        self._note(f"{broker.name} loses power")
        broker.lose_power()
        self._simulation.scheduler.after(self._chance.choice((100 * MS, 2 * SECOND, 9 * SECOND)), broker.start)

    # --- faults

    def _power(self) -> None:
        brokers = list(self._simulation.brokers.values())
        for broker in brokers if self._chance.random() < 0.3 else [self._broker()]:
            self._power_of(broker)

    def _kill(self) -> None:
        self._kill_for_a_while(self._broker())

    def _kill_for_a_while(self, broker: Broker) -> None:
        self._note(f"{broker.name} is killed")
        broker.kill()
        self._simulation.scheduler.after(self._chance.choice((1 * MS, 500 * MS, self._duration())), broker.start)

    def _stop(self) -> None:
        broker = self._broker()
        self._note(f"{broker.name} is stopped")
        broker.stop(self._duration())

    def _pause(self) -> None:
        self._pause_for(self._broker(), self._duration())

    def _pause_for(self, broker: Broker, duration: int) -> None:
        life = broker.life
        if life is not None and not life.process.is_paused:
            self._note(f"{life.process.name} pauses for {duration / SECOND:.3f} s")
            self._simulation.scheduler.pause(life.process)
            self._lasting(duration, lambda: self._simulation.scheduler.resume(life.process))

    def _ways(self) -> list[tuple[str, str]]:
        """Ways to cut: those of one broker to the tree, to one other, or to everybody."""
        names = [broker.name for broker in self._simulation.brokers.values()]
        name = self._chance.choice(names)
        others = [other for other in names if other != name]
        targets = self._chance.choice(([TREE], [self._chance.choice(others)], others, [*others, TREE]))
        return [(name, target) for target in targets]

    def _cut_ways(self, ways: list[tuple[str, str]]) -> None:
        network = self._simulation.network
        self._note(f"cut: {', '.join(f'{source}>{target}' for source, target in ways)}")
        for way in ways:
            network.cut(*way)

        def mend() -> None:
            self._note(f"mended: {', '.join(f'{source}>{target}' for source, target in ways)}")
            for way in ways:
                network.mend(*way)

        self._lasting(self._duration(), mend)

    def _cut(self) -> None:
        ways = self._ways()
        self._cut_ways([*ways, *((target, source) for source, target in ways)])

    def _one_way(self) -> None:
        ways = self._ways()
        self._cut_ways(ways if self._chance.random() < 0.5 else [(target, source) for source, target in ways])

    def _reset(self) -> None:
        connections = list(self._simulation.network.connections)
        if connections:
            connection = self._chance.choice(connections)
            self._note(f"reset: {' - '.join(side.process.name for side in connection.sides)}")
            connection.reset()

    def _tree(self) -> None:
        simulation = self._simulation
        if self._chance.random() < 0.3 and simulation.tree.sessions:
            session_id = self._chance.choice(sorted(simulation.tree.sessions))
            self._note(f"session {session_id} is made to expire")
            simulation.tree.expire(session_id)
            return
        self._note("answers of the tree get lost")
        simulation.tree.lost_answers = 0.3
        self._lasting(self._duration(), lambda: setattr(simulation.tree, "lost_answers", 0.0))

    def _lie(self) -> None:
        network = self._simulation.network
        names = [broker.name for broker in self._simulation.brokers.values()]
        target = self._chance.choice(names)
        liars = [(name, target) for name in names if name != target and self._chance.random() < 0.7]
        self._note(f"refused without reason: {', '.join(f'{source}>{target}' for source, target in liars)}")
        network.lies.update(liars)
        for connection in list(network.connections):
            ends = connection.sides[0].process.name, connection.sides[1].process.name
            if ends in liars:
                connection.reset()
        self._lasting(self._duration(), lambda: network.lies.difference_update(liars))

    def _full(self) -> None:
        broker = self._broker()
        self._note(f"{broker.name}: the disk is full")
        broker.disk.is_full = True
        self._lasting(self._duration(), lambda: setattr(broker.disk, "is_full", False))

    def _clock(self) -> None:
        broker = self._broker()
        broker.clock.set_by_ms = self._chance.choice((-3_600_000, -1000, 0, 1000, 3_600_000))
        self._note(f"{broker.name}: the clock is set by {broker.clock.set_by_ms} ms")

    def _delete(self) -> None:
        self._simulation.deleter.act()

    # --- administration

    def _administrate(self) -> None:
        """Let the administrator do something now and then."""
        if self.is_over:
            return
        if not self._is_alone:
            self._simulation.administrator.act()
        self._simulation.scheduler.after(self._chance.randrange(100 * MS, int(1.5 * SECOND)), self._administrate)
