"""The virtual tree against the model of a coordination store, and what its sessions do when a way is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

from kbroker.coordination.store import Create, SessionExpired, StoreUnavailable, WatchEvent
from tests.kit.models.coordination_machine import CoordinationMachine
from tests.simulation.network import Network, Weather
from tests.simulation.scheduler import SECOND, Process, Scheduler, Task
from tests.simulation.tree import TREE, Session, TreeServer


class World:
    """A tree and its clients."""

    def __init__(self, seed: int = 0) -> None:
        self.scheduler = Scheduler(seed)
        self.network = Network(self.scheduler, Weather(spike_share=0.0))
        self.server = TreeServer(self.scheduler, self.network)

    def connect(self, name: str, process: Process | None = None) -> Session:
        session = Session(self.server, process or Process(name), 6 * SECOND)
        self.run(SECOND)
        return session

    def run(self, duration: int) -> None:
        until = self.scheduler.now + duration
        while self.scheduler.step(until):
            pass

    def in_task(self, process: Process, body: Callable[[], Any]) -> list[Any]:
        """Run `body` as a thread of the process does; what it returns or raises is in the list once it is over."""
        found: list[Any] = []

        def run() -> None:
            try:
                found.append(body())
            except (StoreUnavailable, SessionExpired) as error:
                found.append(error)

        Task(process, run, "test").start()
        return found


class TreeMachine(CoordinationMachine):
    def start(self) -> None:
        self.world = World()
        self.sessions = [self.connect(), self.connect()]
        self.watching = self.connect()

    def connect(self) -> Session:
        return self.world.connect("client")

    def expire(self, session: Session) -> None:  # type: ignore[override]
        self.world.server.expire(session.session_id)

    def stop(self) -> None:
        self.world.run(SECOND)

    def restart(self) -> None:
        """The virtual tree never stops."""


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=40, stateful_step_count=30)


def test_a_call_waits_for_its_answer_on_the_network() -> None:
    world = World()
    process = Process("client")
    session = world.connect("client", process)
    found = world.in_task(process, lambda: session.create("/a"))
    assert found == []
    world.run(SECOND)
    assert found == ["/a"]


def test_a_change_whose_answer_is_lost_may_have_been_made() -> None:
    world = World()
    process = Process("client")
    session = world.connect("client", process)
    world.server.lost_answers = 1.0
    found = world.in_task(process, lambda: session.create("/a"))
    world.run(SECOND)
    assert isinstance(found[0], StoreUnavailable)
    assert world.server.get("/a") is not None


def test_a_cut_session_expires_and_its_nodes_go() -> None:
    world = World()
    process = Process("client")
    session = world.connect("client", process)
    session.create("/a", ephemeral=True)
    ended: list[bool] = []
    session.on_end(lambda: ended.append(True))
    world.network.cut("client", TREE)
    world.run(5 * SECOND)
    assert world.server.get("/a") is not None
    world.run(5 * SECOND)
    assert world.server.get("/a") is None
    assert ended == []
    world.network.mend("client", TREE)
    world.run(5 * SECOND)
    assert ended == [True]
    with pytest.raises(SessionExpired):
        session.get("/a")


def test_an_event_survives_a_lost_connection() -> None:
    world = World()
    session = world.connect("client")
    seen: list[WatchEvent] = []
    session.exists("/a", seen.append)
    world.server.apply(0, [Create("/a")])
    for connection in list(world.network.connections):
        connection.reset()
    world.run(5 * SECOND)
    assert [event.path for event in seen] == ["/a"]


def test_a_killed_process_ends_where_it_waits() -> None:
    world = World()
    process = Process("client")
    session = world.connect("client", process)
    found = world.in_task(process, lambda: session.create("/a"))
    process.end()
    world.run(SECOND)
    assert found == []
    assert process.tasks == []
