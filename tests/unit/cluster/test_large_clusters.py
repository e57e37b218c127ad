"""What a controller does costs the same for one partition and for many: the store is read and written in batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID

import pytest

from kbroker.cluster.topic_requests import CreateTopics, PlannedTopic
from kbroker.coordination import paths
from tests.kit.parts.control_cluster import ControlCluster
from tests.kit.parts.costs import Costs

Step = Callable[[ControlCluster], object]

ONE = (1, 1)
MANY = [(1, 100), (100, 1)]
"""Topics, and the partitions of each."""
MORE_TRANSACTIONS = {"WriteStates": 1, "CreateStates": 2}
"""Transactions of a command for 100 states beyond the first: one has 99 states, or 49 with the nodes of partitions."""


class Cost(NamedTuple):
    commands: Mapping[str, int]
    round_trips: int
    transactions: int


class Case(NamedTuple):
    """What happens to brokers of a cluster, in steps. All partitions are led by broker 2, and 3 follows."""

    name: str
    steps: tuple[Step, ...]
    leader: int
    """Who leads all partitions afterwards."""
    round_trips: int
    """At most, those of all brokers together."""


def lose(*node_ids: int) -> Step:
    """Kill brokers, and end their sessions, at once."""

    def step(cluster: ControlCluster) -> None:
        for each in node_ids:
            cluster.kill(each)
        for each in node_ids:
            cluster.expire(each)

    return step


def start(node_id: int) -> Step:
    return lambda cluster: cluster.start(node_id)


def bounce_unseen(cluster: ControlCluster) -> None:
    """Let broker 2 come back in a new session before there is a controller again."""
    cluster.kill(1)
    cluster.kill(2)
    cluster.expire(2)
    cluster.start(2)
    cluster.expire(1)


CASES = [
    Case("a broker dies", (lose(2),), leader=3, round_trips=3),
    Case("a broker comes back", (lose(2), start(2)), leader=3, round_trips=5),
    Case("the only replica in sync comes back", (lose(3), lose(2), start(2)), leader=2, round_trips=6),
    Case("a controller takes over", (lose(1),), leader=2, round_trips=31),
    Case("a controller takes over after the leader's death", (lose(1, 2),), leader=3, round_trips=31),
    Case("a controller takes over after the leader came back", (bounce_unseen,), leader=3, round_trips=34),
    Case("a controller takes over without leaders", (lose(3), lose(2), lose(1)), leader=-1, round_trips=29),
]


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Costs:
    return Costs(monkeypatch)


def create(topics: int, each_has: int) -> Step:
    """Make topics with one request."""
    replicas = dict.fromkeys(range(each_has), (2, 3))
    ids = {f"t{number}": UUID(int=number + 1) for number in range(topics)}
    wanted = {name: PlannedTopic(paths.TopicAssignment(each, replicas, {}, {}), {}) for name, each in ids.items()}
    return lambda cluster: cluster.ask(CreateTopics(wanted))


def cost_of(costs: Costs, size: tuple[int, int], steps: tuple[Step, ...], leader: int) -> Cost:
    """Return what the last of some steps costs in a new cluster, of which broker 1 is the controller at first."""
    cluster = ControlCluster()
    for node_id in (1, 2, 3, 4):
        cluster.start(node_id)
        cluster.settle()
    *before, last = steps
    for step in before:
        step(cluster)
        cluster.settle()
    costs.take()
    writes = len(cluster.tree.writes)
    last(cluster)
    cluster.settle()
    cost = Cost(*costs.take(), len(cluster.tree.writes) - writes)
    topics, each_has = size
    leaders = [cluster.leader(f"t{topic}", number) for topic in range(topics) for number in range(each_has)]
    assert leaders == [leader] * (topics * each_has)
    return cost


def most_transactions(of_one: Cost) -> int:
    """Return how many transactions make for 100 partitions what those of `of_one` make for one."""
    return of_one.transactions + sum(MORE_TRANSACTIONS.get(name, 0) * n for name, n in of_one.commands.items())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_happens_to_brokers_costs_the_same_for_one_and_for_many_partitions(costs: Costs, case: Case) -> None:
    one = cost_of(costs, ONE, (create(*ONE), *case.steps), case.leader)
    assert one.round_trips <= case.round_trips
    for size in MANY:
        many = cost_of(costs, size, (create(*size), *case.steps), case.leader)
        assert many[:2] == one[:2]
        assert many.transactions <= most_transactions(one)


def test_a_creation_costs_the_same_for_one_and_for_many_topics_and_partitions(costs: Costs) -> None:
    one = cost_of(costs, ONE, (create(*ONE),), 2)
    assert one.round_trips <= 6
    for topics, each_has in MANY:
        many = cost_of(costs, (topics, each_has), (create(topics, each_has),), 2)
        assert many[:2] == one[:2]
        # One for a topic, which fails or succeeds alone, and one for the node above its partitions.
        assert many.transactions <= most_transactions(one) + 2 * (topics - 1)
