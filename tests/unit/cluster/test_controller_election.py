"""Elections of the controller over the embedded store: each has an epoch of its own, whoever comes in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from kbroker.cluster.controller_election import Candidate, Elected
from kbroker.coordination import paths
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.store import Create, Store


class Interrupted:
    """A session that calls `meanwhile` once, before it reads the epoch's node, and `afterwards` once, when it has."""

    def __init__(self, session: Store):
        self._session = session
        self.meanwhile: Callable[[], object] | None = None
        self.afterwards: Callable[[], object] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get(self, path: str, *watch: Any) -> Any:
        if path == paths.CONTROLLER_EPOCH and self.meanwhile is not None:
            call, self.meanwhile = self.meanwhile, None
            call()
        found = self._session.get(path, *watch)
        if path == paths.CONTROLLER_EPOCH and self.afterwards is not None:
            call, self.afterwards = self.afterwards, None
            call()
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    made = EmbeddedStore(str(tmp_path / "store"))
    made.connect().multi([Create("/brokers", b""), Create(paths.BROKER_IDS, b"")])
    yield made
    made.stop()


def test_a_broker_that_is_deposed_while_it_reads_its_epoch_does_not_take_the_next_ones(store: EmbeddedStore) -> None:
    """Two controllers of one epoch would write side by side, and no fence would part them."""
    mine, other = Interrupted(store.connect()), store.connect()
    candidate, next_one = Candidate(1, cast(Store, mine)), Candidate(2, other)
    first = candidate.run(print, 0)
    assert (first.broker_id, first.epoch) == (1, 1)
    elected: list[Elected] = []

    def be_deposed() -> None:
        next_one.depose(first)
        elected.append(next_one.run(print, 0))

    mine.meanwhile = be_deposed
    found = candidate.run(print, 0)
    assert (elected[0].broker_id, elected[0].epoch) == (2, 2)
    assert (found.broker_id, found.epoch_version) == (2, None)


def test_a_broker_that_is_elected_again_meanwhile_has_the_epoch_of_the_later_election(store: EmbeddedStore) -> None:
    mine, other = Interrupted(store.connect()), store.connect()
    candidate, next_one = Candidate(1, cast(Store, mine)), Candidate(2, other)
    first = candidate.run(print, 0)

    def come_and_go() -> None:
        next_one.depose(first)
        next_one.depose(next_one.run(print, 0))
        candidate.run(print, 0)

    mine.meanwhile = come_and_go
    found = candidate.run(print, 0)
    assert (found.broker_id, found.epoch) == (1, 3)
    assert found.creation_id != first.creation_id


def test_a_broker_that_has_read_the_epoch_before_another_was_elected_does_not_give_it_again(
    store: EmbeddedStore,
) -> None:
    mine, other = Interrupted(store.connect()), store.connect()
    candidate, next_one = Candidate(1, cast(Store, mine)), Candidate(2, other)
    elected: list[Elected] = []

    def come_and_go() -> None:
        elected.append(next_one.run(print, 0))
        next_one.depose(elected[0])

    mine.afterwards = come_and_go
    found = candidate.run(print, 0)
    assert [(each.broker_id, each.epoch) for each in (*elected, found)] == [(2, 1), (1, 2)]
    assert found.epoch_version != elected[0].epoch_version


def test_the_node_of_an_earlier_session_of_the_same_broker_elects_nobody(store: EmbeddedStore) -> None:
    """The node goes when that session ends. Whoever takes it for the own one is a controller without a node then."""
    before, now = store.connect(), store.connect()
    first = Candidate(1, before).run(print, 0)
    again = Candidate(1, now).run(print, 0)
    assert (first.epoch, again.epoch) == (1, 2)
    before.close()
    _, stat = now.get(paths.CONTROLLER)
    assert (stat.owner, stat.creation_id) == (now.session_id, again.creation_id)
