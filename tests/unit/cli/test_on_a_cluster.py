"""The commands that make, move and look at replicas, against three brokers."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kbroker.cli.verify_replicas import _Brokers
from kbroker.client import AdminClient, BrokerError, Producer
from kbroker.inspection.replica_check import Bounds, replica_on
from kbroker.model import TopicPartition
from kbroker.testing import Broker, Cluster
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.commands import Run, command_of, commands_here, from_json
from tests.kit.parts.processors import wait_until

WAIT_S = 30.0
SETTINGS = {
    "offsets.topic.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
    "auto.leader.rebalance.enable": "false",  # the tests hold the elections
}
RECORD = b"x" * 100_000
SLOW = "0.1"
"""Megabytes a second: what moves is still moving when it is looked at."""


@pytest.fixture(scope="module")
def cluster(jars: Path) -> Iterator[Cluster]:
    with Cluster(3, settings=SETTINGS, zookeeper_jars=jars) as started:
        yield started


@pytest.fixture
def here(cluster: Cluster) -> Run:
    return commands_here(cluster.bootstrap_servers)


@pytest.fixture
def name() -> str:
    return f"topic-{uuid4().hex[:12]}"


def fill(cluster: Cluster, topic: str, count: int) -> None:
    """Write records of 0.1 MB to partition 0."""
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_many(topic, [RECORD] * count, partitions=0)
        producer.flush(WAIT_S)


def described(here: Run, topic: str) -> list[dict[str, Any]]:
    """Return what is told of the partitions of a topic."""
    (found,) = from_json(here("topics", "describe", topic, "--json"))
    partitions: list[dict[str, Any]] = found["partitions"]
    return partitions


def replicas(here: Run, topic: str) -> list[list[int]]:
    return [each["replicas"] for each in described(here, topic)]


def plan(folder: Path, topic: str, *rows: list[int], first: int = 0) -> str:
    """Write a plan that gives these replicas to the partitions of a topic from `first` on, and return its path."""
    partitions = [{"topic": topic, "partition": at, "replicas": row} for at, row in enumerate(rows, first)]
    path = folder / f"{uuid4().hex}.json"
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


def await_that(is_so: Callable[[], bool], what: str) -> None:
    wait_until(is_so, what, WAIT_S)


def await_moved(here: Run) -> None:
    await_that(lambda: not moving(here), "the end of all moves")


def await_gone(broker: Broker, topic: str) -> None:
    """Wait until a broker has no files of a topic."""
    data = broker._folder.path / "data"
    await_that(lambda: not list(data.glob(f"{topic}-?")), f"the end of {topic} in {data}")


def refused(done: Any) -> str:
    """Return the only line that a command which failed has printed."""
    error: str = done.stderr.decode()
    assert error.startswith("kbroker: ") and error.count("\n") == 1 and not done.stdout, error
    return error


def moving(here: Run) -> list[dict[str, Any]]:
    """Return what `reassign status` tells of each partition that moves."""
    rows: list[dict[str, Any]] = from_json(here("reassign", "status", "--json", code=None))
    return rows


def status_of(here: Run, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = from_json(here("cluster", "status", "--json", *words, code=None))
    return found


def rates(here: Run) -> list[str | None]:
    """Return the limits of replication that are set on the three brokers."""
    found = [from_json(here("configs", "describe", "broker", str(each), "--json")) for each in (1, 2, 3)]
    return [row["value"] for rows in found for row in rows if row["name"].endswith("replication.throttled.rate")]


# --- topics -----------------------------------------------------------------------------------------------------------


def test_a_topic_has_its_replicas_and_leaders_on_all_brokers(cluster: Cluster, here: Run, name: str) -> None:
    here("topics", "create", name, "-p", "6", "--replication-factor", "3", "-c", "min.insync.replicas=2")
    cluster.await_in_sync(name)
    found = described(here, name)
    assert [sorted(each["replicas"]) for each in found] == [[1, 2, 3]] * 6
    assert [each["isr"] for each in found] == [each["replicas"] for each in found]
    assert Counter(each["leader"] for each in found) == {1: 2, 2: 2, 3: 2}
    assert "min.insync.replicas=2" in here("topics", "describe", name).stdout.decode()
    here("topics", "alter", name, "--partitions", "7")
    cluster.await_in_sync(name)
    assert len(replicas(here, name)[6]) == 3
    with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        topics = admin.describe_topics(admin.list_topics(internal=True)).values()
    leads = Counter(each.leader for topic in topics for each in topic.partitions)
    assert {each["id"]: each["leads"] for each in status_of(here)["brokers"]} == leads
    text = here("cluster", "status").stdout.decode()
    for broker_id, count in leads.items():
        said = rf"^broker {broker_id} .*\n  leads {count} of {leads.total()} partitions\n"
        assert re.search(said, text, re.MULTILINE), text
    here("topics", "delete", name)
    for broker in cluster.brokers.values():
        assert name not in from_json(commands_here(broker.bootstrap_servers)("topics", "list", "--json"))
        await_gone(broker, name)


def test_more_replicas_than_brokers_are_refused_in_one_line(here: Run, name: str) -> None:
    error = refused(here("topics", "create", name, "--replication-factor", "4", code=1))
    assert f"topic '{name}': INVALID_REPLICATION_FACTOR: " in error and "3 broker(s) are registered" in error
    here("topics", "create", name)
    error = refused(here("reassign", "plan", name, "--replication-factor", "4", code=1))
    assert "4 replicas need as many brokers, and there are 3" in error


def test_too_few_replicas_for_what_acks_promise_are_one_line_each(here: Run, name: str, cluster: Cluster) -> None:
    """When they are created, planned, and looked at; nothing ends with another code."""
    one, two = f"one-{name}", f"two-{name}"

    def created(*words: str) -> str:
        return here("topics", "create", *words).stderr.decode()

    assert created(name) == "", "three replicas, two in sync: as the brokers of this cluster are set"
    lost = "with 1 replica, records are lost with its broker"
    assert created(one, "--replication-factor", "1") == f"kbroker: topic {one}: {lost}\n"
    risk = "2 replicas and min.insync.replicas=1, a record that acks=all has acknowledged may be on one broker only"
    pair = [f"{each}-{two}" for each in "ab"]
    said = created(*pair, "--replication-factor", "2", "-c", "min.insync.replicas=1")
    assert said == f"kbroker: 2 topics ({', '.join(pair)}): with {risk}\n"
    stops = "with 2 replicas and min.insync.replicas=2, acks=all is refused while one of them is not in sync"
    assert created(two, "--replication-factor", "2") == f"kbroker: topic {two}: {stops}\n"

    words = ["reassign", "plan", name, "--replication-factor"]
    assert here(*words, "2", "--dry-run").stderr.decode() == f"kbroker: topic {name}: {stops}\n"
    assert here(*words, "3", "--dry-run").stderr == here("reassign", "plan", two, "--dry-run").stderr == b""
    waits = "until the new replicas are in sync, acks=all is refused: it needs 2, and there is 1"
    grown = here("reassign", "plan", one, "--replication-factor", "3", "--dry-run")
    assert grown.stderr.decode() == f"kbroker: topic {one}: {waits}\n"

    cluster.await_in_sync(name, one, two, *pair)
    done = here("cluster", "status", "--json")
    told = from_json(done)["warnings"]
    assert done.stderr.decode().splitlines() == [f"kbroker: {each}" for each in told]
    assert all(any(each.endswith(what) for each in told) for what in (lost, risk, stops)), told
    assert not any("3 replicas" in each for each in told)
    here("topics", "delete", name, one, two, *pair)


def settings_of(here: Run, kind: str, of: str) -> dict[str, tuple[str, str]]:
    """Return what is set, by name: the value, and who has set it."""
    rows = from_json(here("configs", "describe", kind, of, "--json"))
    return {row["name"]: (row["value"], row["source"]) for row in rows}


def await_setting(here: Run, kind: str, of: str, name: str, *told: str) -> None:
    await_that(lambda: settings_of(here, kind, of).get(name) == told, f"{name}={told[0]} of {kind} {of}")


def test_settings_of_topics_and_brokers_are_the_same_at_every_broker(cluster: Cluster, here: Run, name: str) -> None:
    here("topics", "create", name)
    here("configs", "alter", "topic", name, "--set", "retention.ms=3600000")
    here("configs", "alter", "broker", "2", "--set", "log.retention.ms=7200000")
    here("configs", "alter", "broker", "default", "--set", "log.cleaner.threads=2")

    for broker in cluster.brokers.values():
        at = commands_here(broker.bootstrap_servers)
        await_setting(at, "topic", name, "retention.ms", "3600000", "topic")
        await_setting(at, "broker", "2", "log.retention.ms", "7200000", "broker")
        await_setting(at, "broker", "3", "log.cleaner.threads", "2", "all brokers")
        assert "log.retention.ms" not in settings_of(at, "broker", "1")
    here("configs", "alter", "broker", "2", "--unset", "log.retention.ms")
    here("configs", "alter", "broker", "default", "--unset", "log.cleaner.threads")
    assert "broker 9" in refused(here("configs", "describe", "broker", "9", code=1))
    assert "broker 9" in refused(here("configs", "alter", "broker", "9", "--set", "log.retention.ms=1", code=1))


# --- moves ------------------------------------------------------------------------------------------------------------


def test_replicas_move_as_planned_and_leaders_are_elected(
    cluster: Cluster, here: Run, name: str, tmp_path: Path
) -> None:
    here("topics", "create", name, "-p", "6", "--replication-factor", "2")
    cluster.await_in_sync(name)
    fill(cluster, name, 3)
    output = str(tmp_path / "plan.json")
    rows = from_json(here("reassign", "plan", name, "--without", "3", "--json", "--output", output))
    assert rows and all(sorted(row["new_replicas"]) == [1, 2] for row in rows)
    here("reassign", "execute", output)
    await_moved(here)
    assert here("reassign", "status").stdout == b"nothing is moving\n"
    assert [sorted(each) for each in replicas(here, name)] == [[1, 2]] * 6
    assert here("reassign", "plan", name, "--without", "3").stdout == b"nothing has to move\n"

    here("reassign", "execute", plan(tmp_path, name, *[[2, 1]] * 6))
    await_that(lambda: replicas(here, name) == [[2, 1]] * 6, "the new order of replicas")
    before = [each["leader"] for each in described(here, name)]
    elected = from_json(here("topics", "elect-leaders", f"{name}:0-5", "--json"))
    assert elected == [{"topic": name, "partition": at, "leader": 2} for at, leader in enumerate(before) if leader != 2]
    assert 1 in before and elected
    await_that(lambda: [each["leader"] for each in described(here, name)] == [2] * 6, "what all brokers tell")
    assert here("topics", "elect-leaders", name).stdout == b"every leader is the right one already\n"
    assert "name the partitions" in refused(here("topics", "elect-leaders", "--unclean", code=1))
    kept = here("verify-log", "--replicas", name)
    assert not kept.stdout and "6 partitions with more than one replica compared" in kept.stderr.decode()


def test_a_throttled_move_is_watched_and_cancelled(cluster: Cluster, here: Run, name: str, tmp_path: Path) -> None:
    """Meanwhile the status tells by how much the new replica lags, and that nothing is wrong."""
    here("topics", "create", name, "--replication-factor", "2", "-c", "segment.bytes=1048576")
    (old,) = replicas(here, name)
    (new,) = {1, 2, 3} - set(old)
    fill(cluster, name, 60)
    here("reassign", "execute", plan(tmp_path, name, [old[0], new]), "--throttle", SLOW)
    (row,) = from_json(here("reassign", "status", "--json", code=1))
    assert (row["topic"], row["adding"], row["removing"]) == (name, [new], [old[1]])
    assert row["bytes_copied"] < row["bytes"] and row["bytes"] > 60 * len(RECORD)
    assert set(rates(here)) == {"100000"}

    status = from_json(here("cluster", "status", "--json"))
    (lagging,) = status["lagging"]
    assert (lagging["topic"], lagging["broker"], lagging["alive"]) == (name, new, True)
    assert 1 < lagging["lag"] <= 60
    assert (status["under_replicated_partitions"], status["moving_partitions"], status["ready"]) == (0, 1, True)
    text = here("cluster", "status").stdout.decode()
    assert "0 under-replicated, 0 under min ISR, 0 without a leader, 1 moving\n" in text
    assert f"  {name}-0 on broker {new} is " in text and " offsets behind\n" in text

    here("configs", "alter", "topic", name, "--set", "min.insync.replicas=3")
    await_that(lambda: status_of(here)["under_min_isr_partitions"] == 1, "that the replica which copies is needed")
    assert "0 under-replicated, 1 under min ISR, " in here("cluster", "status", code=1).stdout.decode()
    with (
        Producer(bootstrap_servers=cluster.bootstrap_servers, retries=0, enable_idempotence=False) as producer,
        pytest.raises(BrokerError, match="NOT_ENOUGH_REPLICAS"),
    ):
        producer.send(name, RECORD, partition=0).result(WAIT_S)
    here("configs", "alter", "topic", name, "--unset", "min.insync.replicas")

    assert here("reassign", "plan", name, "--without", str(old[1])).stdout == b"nothing has to move\n", "it moves"
    (planned,) = from_json(here("reassign", "plan", name, "--without", str(new), "--json"))
    assert (planned["replicas"], planned["new_replicas"]) == ([old[0], new], [old[0], old[1]])

    cancelled = here("reassign", "cancel", name, "--preserve-throttles", "--json")
    assert from_json(cancelled) == [{"topic": name, "partition": 0}]
    assert replicas(here, name) == [old]
    assert here("reassign", "status", "--preserve-throttles").stdout == b"nothing is moving\n"
    assert set(rates(here)) == {"100000"} and len(of_topic(here, name)) == 3
    assert here("reassign", "cancel", name).stdout == b"0 moves cancelled\n"
    assert rates(here) == []
    assert of_topic(here, name) == ["segment.bytes"]


def test_a_second_throttled_move_leaves_the_first_throttled(
    cluster: Cluster, here: Run, name: str, tmp_path: Path
) -> None:
    here("topics", "create", name, "-p", "2", "--replication-factor", "2", "-c", "segment.bytes=1048576")
    cluster.await_in_sync(name)
    old = replicas(here, name)
    new = [({1, 2, 3} - set(each)).pop() for each in old]
    fill(cluster, name, 60)
    for partition in (0, 1):
        row = [old[partition][0], new[partition]]
        here("reassign", "execute", plan(tmp_path, name, row, first=partition), "--throttle", SLOW)
        throttled = settings_of(here, "topic", name)
        followers = throttled["follower.replication.throttled.replicas"][0].split(",")
        assert f"0:{new[0]}" in followers
        leaders = throttled["leader.replication.throttled.replicas"][0].split(",")
        assert {f"0:{each}" for each in old[0]} <= set(leaders) and f"0:{new[0]}" not in leaders
    assert f"1:{new[1]}" in followers
    here("reassign", "cancel", f"{name}:1")
    assert set(rates(here)) == {"100000"}, "the other one still moves"
    here("reassign", "cancel", f"{name}:0")
    assert rates(here) == []
    assert replicas(here, name)[0] == old[0] and of_topic(here, name) == ["segment.bytes"]


def of_topic(here: Run, topic: str) -> list[str]:
    """Return the names of the settings that the topic has of its own."""
    return [name for name, (_, source) in settings_of(here, "topic", topic).items() if source == "topic"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ([1, 9], "INVALID_REPLICA_ASSIGNMENT: Replica assignment has brokers that are not alive"),
        ([1, 1], "INVALID_REPLICA_ASSIGNMENT: Duplicate replica ids"),
        ([], "INVALID_REPLICA_ASSIGNMENT: Empty replica list"),
        ([-1], "-1 is no broker's id"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_and_leaves_no_throttle(
    here: Run, name: str, tmp_path: Path, row: list[int], says: str
) -> None:
    here("topics", "create", name, "--replication-factor", "2")
    before = replicas(here, name)
    error = refused(here("reassign", "execute", plan(tmp_path, name, row), "--throttle", SLOW, code=1))
    assert f"{name}-0: {says}" in error
    assert replicas(here, name) == before and rates(here) == []
    assert of_topic(here, name) == []


def test_partitions_and_topics_that_are_not_there_do_not_move(here: Run, name: str, tmp_path: Path) -> None:
    here("topics", "create", name)
    for throttle in ([], ["--throttle", SLOW]):
        error = refused(here("reassign", "execute", plan(tmp_path, name, [1], [1]), *throttle, code=1))
        assert f"topic '{name}' has no partition 1; it has 1" in error
        missing = plan(tmp_path, f"not-{name}", [1])
        assert f"not-{name}" in refused(here("reassign", "execute", missing, *throttle, code=1))
    assert rates(here) == []
    assert f"not-{name}" in refused(here("reassign", "plan", f"not-{name}", code=1))
    assert f"not-{name}" in refused(here("reassign", "cancel", f"not-{name}", code=1))
    assert "broker 9 is not in the cluster; it has 1, 2, 3" in refused(here("reassign", "plan", "--on", "9", code=1))


# --- what replicas have -----------------------------------------------------------------------------------------------


def test_a_replica_whose_start_moves_while_it_is_read_goes_on_there(cluster: Cluster, here: Run, name: str) -> None:
    here("topics", "create", name, "--replication-factor", "3")
    at = TopicPartition(name, 0)
    for _ in range(4):
        fill(cluster, name, 1)
    with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        leader = replica_on(admin, at, cluster.leader(name, 0))
        assert leader.look().start_offset == 0
        admin.delete_records({at: 2})
        assert [each.base_offset for each in leader.read(0)] == [2, 3]
        assert leader.look() == Bounds(2, 4)
    kept = here("verify-log", "--replicas", name)
    assert not kept.stdout and "1 partition with more than one replica compared\n" in kept.stderr.decode()


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({}, 0),
        ({"retention.ms": "-1"}, 0),
        ({"retention.ms": "1000"}, None),
        ({"retention.bytes": "1000000"}, None),
        ({"cleanup.policy": "compact"}, None),
    ],
)
def test_what_retention_leaves_is_known(
    cluster: Cluster, here: Run, name: str, settings: dict[str, str], first: int | None
) -> None:
    with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(name, 1, 3, settings)
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send(name, b"x", key=b"k", partition=0).result(WAIT_S)
        assert _Brokers(admin, [name]).kept_from(TopicPartition(name, 0)) == first


# --- a broker comes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_broker_that_comes_gets_its_share_and_moves_it_between_its_disks(
    cluster: Cluster, here: Run, name: str, tmp_path: Path
) -> None:
    here("topics", "create", name, "-p", "4", "--replication-factor", "3")
    fill(cluster, name, 30)
    disks = [str(tmp_path / each) for each in ("one", "two")]
    settings: Mapping[str, object] = {
        "broker.id": 4, "zookeeper.connect": cluster.zookeeper.connect, "log.dirs": ",".join(disks), **SETTINGS,
    }  # fmt: skip
    with BrokerProcess({**settings}, tmp_path / "4") as newcomer:
        await_that(lambda: len(status_of(here)["brokers"]) == 4, "broker 4")
        here("reassign", "plan", name, "--execute")
        here("reassign", "execute", plan(tmp_path, name, [4, 1, 2]))
        await_moved(here)
        placed = replicas(here, name)
        assert placed[0] == [4, 1, 2] and sum(4 in each for each in placed) >= 3
        here("topics", "elect-leaders", f"{name}:0")
        with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
            replica = (name, 0, 4)

            def place() -> str | None:
                (found,) = admin.describe_replica_log_dirs([replica]).values()
                return found.path

            (other,) = {*disks} - {place()}
            admin.alter_replica_log_dirs({replica: other})
            fill(cluster, name, 3)
            await_that(lambda: place() == other, "the move between directories")
        (mine,) = [each for each in status_of(here)["brokers"] if each["id"] == 4]
        assert {each["path"]: each["partitions"] > 0 for each in mine["log_dirs"]}[other]
        kept = here("verify-log", "--replicas", name)
        assert not kept.stdout and "4 partitions with more than one replica compared" in kept.stderr.decode()
        assert described(here, name)[0]["end_offset"] == 33

        here("reassign", "plan", "--without", "4", "--execute")
        await_moved(here)
        assert all(4 not in each for each in replicas(here, name))
        assert newcomer.stop() == 0
    await_that(lambda: status_of(here)["ready"], "a cluster at rest")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"broker.id": 1}, ["broker.id=1 is registered already (PLAINTEXT://{first})"]),
        (
            {"cluster.id": "AAAAAAAAAAAAAAAAAAAAAA"},
            ["to cluster AAAAAAAAAAAAAAAAAAAAAA (meta.properties): give another chroot"],
        ),
        (
            {
                "listeners": "INSIDE://127.0.0.1:0",
                "listener.security.protocol.map": "INSIDE:PLAINTEXT",
                "inter.broker.listener.name": "INSIDE",
            },
            [
                "listener INSIDE (inter.broker.listener.name, ",
                "is not one of broker 1, 2, 3",
                ", which has PLAINTEXT: ",
            ],
        ),
        ({"advertised.listeners": "PLAINTEXT://{first}"}, ["broker 1 ", "({first})", "(advertised.listeners, "]),
    ],
    ids=["a taken id", "another cluster", "another inter-broker listener", "the address of another broker"],
)
def test_a_broker_that_must_not_join_says_why_in_one_line_and_the_others_go_on(
    cluster: Cluster, here: Run, tmp_path: Path, wrong: dict[str, object], says: list[str]
) -> None:
    """The next broker that starts, and is killed, is noticed: no registration is left that stops the controller."""
    first = cluster.brokers[1].bootstrap_servers
    settings: dict[str, object] = {
        "broker.id": 5, "zookeeper.connect": cluster.zookeeper.connect, "zookeeper.session.timeout.ms": 500,
        "zookeeper.connection.timeout.ms": 30_000, "listeners": "PLAINTEXT://127.0.0.1:0", **SETTINGS, **wrong,
    }  # fmt: skip
    data = tmp_path / "data"
    if cluster_id := settings.pop("cluster.id", None):
        data.mkdir()
        (data / "meta.properties").write_text(f"version=0\nbroker.id=5\ncluster.id={cluster_id}\n")
    words = [f"--override={name}={value}".replace("{first}", first) for name, value in settings.items()]
    command = command_of("start", "--data", str(data), "--log-level", "error", *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1 and not done.stdout and done.stderr.count("\n") == 1, done
    assert f"zookeeper.connect={cluster.zookeeper.connect}: " in done.stderr
    assert all(each.replace("{first}", first) in done.stderr for each in says), done.stderr

    def known() -> list[int]:
        return [each["id"] for each in status_of(here)["brokers"]]

    assert known() == [1, 2, 3]
    good: dict[str, object] = {
        "broker.id": 4, "zookeeper.connect": cluster.zookeeper.connect, "zookeeper.session.timeout.ms": 2_000,
        "zookeeper.connection.timeout.ms": 30_000, **SETTINGS,
    }  # fmt: skip
    with BrokerProcess(good, tmp_path / "4") as newcomer:
        await_that(lambda: known() == [1, 2, 3, 4], "broker 4")
        newcomer.kill()
        await_that(lambda: known() == [1, 2, 3], "the loss of broker 4")


# --- a broker is away -------------------------------------------------------------------------------------------------


def test_what_a_dead_broker_leaves_is_told_and_its_topics_are_not_touched(
    cluster: Cluster, here: Run, name: str, tmp_path: Path
) -> None:
    doomed, pair = f"doomed-{name}", f"pair-{name}"
    here("topics", "create", name, doomed, "--replication-factor", "3")
    here("topics", "create", pair, "--replication-factor", "3", "-p", "2")
    cluster.await_in_sync(name, doomed, pair)
    (row,) = described(here, name)
    alive, other, dead = [row["leader"], *({1, 2, 3} - {row["leader"]})]
    here("reassign", "execute", plan(tmp_path, pair, [other, alive, dead], [dead, alive, other]))
    here("topics", "elect-leaders", pair)
    here("reassign", "execute", plan(tmp_path, pair, [alive, other, dead], [dead, alive, other]))
    await_moved(here)
    cluster.kill(dead)
    try:
        fill(cluster, name, 1)
        await_that(lambda: dead not in {each["id"] for each in status_of(here)["brokers"]}, "the loss of the broker")
        status = status_of(here)
        assert status["under_replicated_partitions"] > 0
        before = status["under_min_isr_partitions"]
        here("configs", "alter", "topic", name, "--set", "min.insync.replicas=3")
        await_that(lambda: status_of(here)["under_min_isr_partitions"] == before + 1, "the refusal of acks=all")
        assert f" under-replicated, {before + 1} under min ISR, " in here("cluster", "status", code=1).stdout.decode()
        assert not status["ready"] and status["offline_partitions"] == 0
        (found,) = [each for each in status["lagging"] if each["topic"] == name]
        assert found == {"topic": name, "partition": 0, "broker": dead, "alive": False, "lag": None}
        text = here("cluster", "status", code=1).stdout.decode()
        assert f"on broker {dead} is not in sync, its broker is not there\n" in text
        error = refused(here("reassign", "plan", code=1))
        assert f"broker {dead} has replicas and is not in the cluster now" in error
        on_two = ("--on", f"{alive},{other}", "--replication-factor", "2")
        (row,) = from_json(here("reassign", "plan", name, *on_two, "--json"))
        assert sorted(row["new_replicas"]) == sorted([alive, other]), "--on says who is to have replicas"
        compared = here("verify-log", "--replicas", name, code=1)
        assert compared.stdout.decode().startswith(f"{name}-0 on broker {dead}: it cannot be read: ")
        assert "0 partitions with more than one replica compared, 1 in part\n" in compared.stderr.decode()
        elected = here("topics", "elect-leaders", pair, "--json", code=1)
        assert f"1 of 2 failed: {pair}-1: PREFERRED_LEADER_NOT_AVAILABLE" in elected.stderr.decode()
        assert from_json(elected) == [{"topic": pair, "partition": 0, "leader": alive}]

        here("topics", "delete", doomed)
        gone = refused(here("reassign", "execute", plan(tmp_path, doomed, [alive]), code=1))
        assert doomed in gone and "UNKNOWN_TOPIC_OR_PARTITION" in gone
        again = refused(here("topics", "create", doomed, "--replication-factor", "2", code=1))
        assert f"topic '{doomed}': TOPIC_ALREADY_EXISTS" in again
    finally:
        cluster.start(dead)
    await_that(lambda: status_of(here)["ready"], "a cluster at rest")
    await_gone(cluster.brokers[dead], doomed)
    here("topics", "create", doomed)
    here("topics", "delete", doomed)


def test_a_replica_that_lacks_records_is_elected_when_it_is_asked_for(cluster: Cluster, here: Run, name: str) -> None:
    """The last in sync is gone. Who is elected instead leads from then on, and what only the other had is lost."""
    here("topics", "create", name, "--replication-factor", "2", "-c", "min.insync.replicas=1")
    cluster.await_in_sync(name)
    unclean = ("topics", "elect-leaders", name, "--unclean")
    assert here(*unclean).stdout == b"every leader is the right one already\n"
    ((last, behind),) = replicas(here, name)
    fill(cluster, name, 2)
    try:
        cluster.kill(behind)
        await_that(lambda: described(here, name)[0]["isr"] == [last], "that the dead one is not in sync")
        fill(cluster, name, 3)
        cluster.kill(last)
        cluster.brokers[behind].start()
        await_that(lambda: [each["id"] for each in status_of(here)["brokers"]] == sorted({1, 2, 3} - {last}), "both")
        await_that(lambda: described(here, name)[0]["leader"] == -1, "that nobody leads")
        refused_first = here("topics", "elect-leaders", name, "--json", code=1)
        assert f"{name}-0: PREFERRED_LEADER_NOT_AVAILABLE" in refused_first.stderr.decode()
        assert from_json(here(*unclean, "--json")) == [{"topic": name, "partition": 0, "leader": behind}]
        await_that(lambda: described(here, name)[0]["end_offset"] == 2, "what all brokers tell")
        assert here(*unclean).stdout == b"every leader is the right one already\n"
    finally:
        cluster.start()
    (row,) = described(here, name)
    assert (row["leader"], row["end_offset"]) == (behind, 2)
    compared = "1 partition with more than one replica compared\n"
    await_that(lambda: compared in here("verify-log", "--replicas", name).stderr.decode(), "equal replicas")
    here("topics", "delete", name)


def test_without_zookeeper_the_cluster_is_not_ready_with_http_ports_and_without(
    cluster: Cluster, here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker's HTTP port tells that its session may have ended. Without the ports, the controller is the witness."""
    cluster.zookeeper.kill()
    try:
        patience = ("--timeout", "1")
        await_that(lambda: not any(at["ready"] for at in status_of(here, *patience)["brokers"]), "what HTTP ports tell")
        monkeypatch.setattr("kbroker.cli.cluster_status.HTTP_ADDRESS", "kbroker.none")
        status = from_json(here("cluster", "status", "--json", *patience, code=1))
        assert all(each["ready"] for each in status["brokers"]), "they answer, and their disks are good"
        assert (status["under_replicated_partitions"], status["offline_partitions"]) == (0, 0)
        (problem,) = status["problems"]
        assert "cannot reach ZooKeeper" in problem and "NOT_CONTROLLER" in problem
        watching = here("reassign", "status", *patience, code=1)
        assert "NOT_CONTROLLER" in refused(watching), "nobody knows whether something moves"
    finally:
        cluster.zookeeper.start()
    cluster.await_in_sync()
    await_that(lambda: status_of(here)["ready"], "a cluster at rest")
