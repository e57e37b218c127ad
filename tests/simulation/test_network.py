"""The virtual network keeps the order within a connection and loses nothing but what a cut or a reset takes."""

from __future__ import annotations

from typing import Any

from tests.simulation.network import Caller, Failure, Network, Weather, serving
from tests.simulation.scheduler import SECOND, Process, Scheduler

TIMEOUT = 5 * SECOND


class World:
    """A server that answers with what it was sent, and a client."""

    def __init__(self, spikes: float = 0.3) -> None:
        self.scheduler = Scheduler(7)
        self.network = Network(self.scheduler, Weather(spike_share=spikes))
        self.server = Process("s")
        self.served: list[Any] = []
        self.network.listen(self.server, serving(self._serve))
        self.client = Process("c")
        self.refused: list[bool] = []
        self.caller = Caller(self.network, self.client, "s", on_refused=lambda: self.refused.append(True))
        self.answers: list[Any] = []

    def _serve(self, peer: Process, request: Any, respond: Any) -> None:
        self.served.append(request)
        respond(request)

    def call(self, request: Any) -> None:
        self.caller.call(request, self.answers.append, TIMEOUT)

    def run(self, duration: int) -> None:
        until = self.scheduler.now + duration
        while self.scheduler.step(until):
            pass


def test_requests_of_a_connection_keep_their_order() -> None:
    world = World()
    for number in range(50):
        world.call(number)
    world.run(20 * SECOND)
    assert world.served == world.answers == list(range(50))


def test_a_cut_keeps_back_and_mends() -> None:
    world = World()
    world.call(1)
    world.run(SECOND)
    world.network.cut("c", "s")
    world.call(2)
    world.run(SECOND)
    assert world.served == [1]
    world.network.mend("c", "s")
    world.run(SECOND)
    assert world.answers == [1, 2]


def test_nothing_arrives_after_a_pause_at_an_end_that_was_closed_first() -> None:
    world = World(spikes=0)
    arrived: list[Any] = []
    connections: list[Any] = []
    world.network.connect(world.client, "s", arrived.append, connections.append)
    world.run(SECOND)
    (connection,) = connections
    world.scheduler.pause(world.client)
    world.scheduler.after(0, lambda: connection.close(0), world.client)
    connection.reset()
    world.run(SECOND)
    world.scheduler.resume(world.client)
    world.run(SECOND)
    assert arrived == []


def test_who_waits_too_long_gives_up_and_does_not_know_what_was_done() -> None:
    world = World()
    world.call(1)
    world.run(SECOND)
    world.network.cut("s", "c")
    world.call(2)
    world.run(2 * TIMEOUT)
    assert world.served == [1, 2]
    assert world.answers == [1, Failure(is_refused=False, is_sent=True)]


def test_a_killed_process_refuses_and_its_peers_learn_it_at_once() -> None:
    world = World()
    world.call(1)
    world.run(SECOND)
    world.server.end()
    world.network.process_ended(world.server)
    world.run(SECOND)
    assert world.refused == [True]


def test_a_machine_without_power_is_silent_until_it_is_back() -> None:
    world = World(spikes=0.0)
    world.call(1)
    world.run(SECOND)
    world.server.end()
    world.network.power_lost("s")
    world.call(2)
    world.run(SECOND)
    assert world.answers == [1]
    assert world.refused == []
    world.network.power_back("s")
    world.run(SECOND)
    assert isinstance(world.answers[1], Failure)
    assert world.refused == [True]


def test_a_liar_refuses_although_it_lives() -> None:
    world = World()
    world.call(1)
    world.run(SECOND)
    world.network.lies.add(("c", "s"))
    for connection in list(world.network.connections):
        connection.reset()
    world.run(SECOND)
    assert world.refused == [True]
    world.call(2)
    world.run(SECOND)
    assert world.answers == [1, Failure(is_refused=True, is_sent=False)]
    assert world.refused == [True]


def test_a_port_that_was_never_reached_may_be_that_of_a_process_that_starts() -> None:
    """The contract is that of `cluster.peers.Peers.on_refused`."""
    world = World(spikes=0.0)
    world.network.lies.add(("c", "s"))
    world.caller.keep()
    world.run(4 * SECOND)
    assert world.refused == []
    world.run(2 * SECOND)
    assert world.refused == [True]


def test_a_paused_process_does_everything_later_in_order() -> None:
    world = World(spikes=0.0)
    world.call(1)
    world.run(SECOND)
    world.scheduler.pause(world.server)
    for number in range(2, 6):
        world.call(number)
    world.run(SECOND)
    assert world.served == [1]
    world.scheduler.resume(world.server)
    world.run(SECOND)
    assert world.served == [1, 2, 3, 4, 5]
