"""The store in a real ZooKeeper does what a dict does, for every order of calls that hypothesis finds."""

import itertools
import threading

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from kbroker.coordination.store import Store
from kbroker.coordination.zookeeper import ZooKeeperStore
from tests.kit.kafka.zookeeper import ZooKeeperProcess
from tests.kit.models.coordination import CoordinationModel
from tests.kit.models.coordination_machine import CoordinationMachine

SESSION_TIMEOUT_S = 30.0
COUNT = itertools.count()


def machine(server: ZooKeeperProcess) -> type[CoordinationMachine]:
    class ZooKeeperMachine(CoordinationMachine):
        """A restart is that of the sessions: the server goes on, as an ensemble does."""

        def make_model(self) -> CoordinationModel:
            self.address = f"{server.address}/model/{next(COUNT)}"
            first = ZooKeeperStore(self.address, SESSION_TIMEOUT_S)
            first.make_chroot()
            first.close()
            return CoordinationModel(numbers_every_child=True)

        def start(self) -> None:
            self.watching = self.connect()
            self.sessions = [self.connect(), self.connect()]

        def connect(self) -> Store:
            return ZooKeeperStore(self.address, SESSION_TIMEOUT_S)

        def expire(self, session: Store) -> None:
            assert isinstance(session, ZooKeeperStore)
            server.expire(session)

        def stop(self) -> None:
            """The session that watches goes first: what the others take with them must not be told to it."""
            self.deliver()
            for session in (self.watching, *self.sessions):
                session.close()

        def deliver(self) -> None:
            """Until the watching session has seen what has happened up to now."""
            done = threading.Event()
            self.watching.exists("/done", lambda _event: done.set())
            self.sessions[0].create("/done")
            assert done.wait(SESSION_TIMEOUT_S)
            self.sessions[0].delete("/done")
            self.model.nodes["/"].next_sequence += 1

        def end(self, who: int, expire: bool) -> None:
            self.deliver()
            assert self.seen == self.expected
            super().end(who, expire)
            self.deliver()
            # The nodes of a session go in no order.
            assert sorted(self.seen, key=str) == sorted(self.expected, key=str)
            self.seen, self.expected = [], []

    return ZooKeeperMachine


def test_zookeeper_does_what_the_model_does(zookeeper: ZooKeeperProcess) -> None:
    run_state_machine_as_test(machine(zookeeper), settings=settings(max_examples=12, stateful_step_count=30))
