"""`kbroker topics` against a real broker."""

from __future__ import annotations

from typing import Any

from kbroker.client import AdminClient, Producer, TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers import answers
from tests.kit.brokers.process import BrokerProcess
from tests.kit.brokers.scripted import Peer, ScriptedBroker
from tests.kit.clients.commands import Run, commands_here, from_json, lines


def test_a_topic_is_created_listed_described_altered_and_deleted(here: Run) -> None:
    here("topics", "create", "views", "--partitions", "2", "--config", "retention.ms=86400000")
    assert b"views" in lines(here("topics", "list"))
    assert "views" in from_json(here("topics", "list", "--json"))
    (described,) = from_json(here("topics", "describe", "views", "--json"))
    assert described["configs"] == {"retention.ms": "86400000"}
    assert [p["partition"] for p in described["partitions"]] == [0, 1]
    text = here("topics", "describe", "views").stdout.decode()
    assert text.startswith("views  2 partitions  0 messages  ")
    assert "retention.ms=86400000\npartition  leader  epoch  replicas  isr  start  end  messages  size\n" in text
    here("topics", "alter", "views", "--partitions", "5")
    assert len(from_json(here("topics", "describe", "views", "--json"))[0]["partitions"]) == 5
    here("topics", "delete", "views")
    assert b"views" not in lines(here("topics", "list"))


def test_what_the_broker_refuses_is_one_line_that_names_the_topic(here: Run, topic: str) -> None:
    for words, says in (
        (["create", topic], "TOPIC_ALREADY_EXISTS"),
        (["create", "bad name"], "INVALID_TOPIC_EXCEPTION"),
        (["create", "new", "--config", "retention.ms=x"], "INVALID_CONFIG"),
        (["delete", "nothing"], "UNKNOWN_TOPIC_OR_PARTITION"),
        (["describe", "nothing"], "UNKNOWN_TOPIC_OR_PARTITION"),
        (["alter", topic, "--partitions", "1"], "INVALID_PARTITIONS"),
    ):
        error = here("topics", *words, code=1).stderr.decode()
        assert error.startswith("kbroker: topic '") and says in error and error.count("\n") == 1
    here("topics", "create", topic, "--if-not-exists")
    here("topics", "delete", "nothing", "--if-exists")


def test_describing_and_consuming_do_not_create_topics(here: Run) -> None:
    here("topics", "describe", "ghost", code=1)
    here("consume", "ghost", code=1)
    assert b"ghost" not in lines(here("topics", "list", "--internal"))


def test_offsets_counts_and_sizes_are_described(broker: BrokerProcess, here: Run, topic: str) -> None:
    with Producer(bootstrap_servers=broker.address) as producer:
        producer.send_many(topic, [b"x"] * 10, partitions=1).result(30)
    with AdminClient(bootstrap_servers=broker.address) as admin:
        admin.delete_records({TopicPartition(topic, 1): 4})
    (described,) = from_json(here("topics", "describe", topic, "--json"))
    offsets = [(p["start_offset"], p["end_offset"], p["messages"]) for p in described["partitions"]]
    assert offsets == [(0, 0, 0), (4, 10, 6), (0, 0, 0)] and described["messages"] == 6
    head, titles, *rows = here("topics", "describe", topic).stdout.decode().splitlines()
    assert head.startswith(f"{topic}  3 partitions  6 messages")
    assert titles.split() == ["partition", "leader", "epoch", "replicas", "isr", "start", "end", "messages", "size"]
    assert rows[1].split()[5:8] == ["4", "10", "6"]


def test_a_topic_that_is_missing_hides_no_other_and_the_nearest_is_named(here: Run, topic: str) -> None:
    done = here("topics", "describe", topic, f"{topic}x", "--json", code=1)
    assert [each["name"] for each in from_json(done)] == [topic]
    error = done.stderr.decode()
    assert f"'{topic}x'" in error and error.endswith(f"; did you mean {topic}?\n") and error.count("\n") == 1
    assert f"did you mean {topic}?" in here("consume", f"{topic}x", code=1).stderr.decode()
    assert "kbroker topics list has all" in here("topics", "describe", "zzz", code=1).stderr.decode()
    for words in (
        ["topics", "delete"],
        ["topics", "alter", "-p", "9"],
        ["topics", "delete-records", "--all"],
        ["configs", "describe", "topic"],
        ["configs", "alter", "topic", "--set", "retention.ms=5"],
        ["transactions", "describe-producers", "--partition", "0", "--topic"],
        ["transactions", "find-hanging", "--topic"],
    ):
        assert f"did you mean {topic}?" in here(*words, f"{topic}x", code=1).stderr.decode(), words


def test_records_are_deleted_once_the_plan_is_executed(broker: BrokerProcess, here: Run, topic: str) -> None:
    with Producer(bootstrap_servers=broker.address) as producer:
        for at in range(10):
            producer.send(topic, b"x", partition=1, timestamp=1000 + at).result(30)

    def starts() -> list[int]:
        return [p["start_offset"] for p in from_json(here("topics", "describe", topic, "--json"))[0]["partitions"]]

    words = ["topics", "delete-records", topic]
    planned = here(*words, "--before-offset", "4")
    assert planned.stdout.decode().splitlines()[2].split() == [topic, "1", "0", "10", "4", "4", "-"]
    assert planned.stderr == b"kbroker: this is the plan, and nothing is done yet: --execute does it\n"
    assert here(*words, "--before-offset", "4", "--dry-run").stderr == b"" and starts() == [0, 0, 0]
    rows = from_json(here(*words, "--before-offset", "4", "--execute", "--json"))
    assert [row["note"] for row in rows] == ["cut: 4 is past the end", None, "cut: 4 is past the end"]
    assert starts() == [0, 4, 0]
    rows = from_json(here(*words, "--before-time", "1006", "--execute", "--json"))
    assert [(row["new_start_offset"], row["messages"]) for row in rows] == [(0, 0), (6, 2), (0, 0)]
    (row,) = from_json(here("topics", "delete-records", f"{topic}:1", "--before-offset", "2", "--execute", "--json"))
    assert (row["new_start_offset"], row["note"]) == (6, "cut: 2 is before the beginning")
    here("topics", "delete-records", f"{topic}:1", "--all", "--execute")
    assert starts() == [0, 10, 0]
    assert "has no partition 9" in here("topics", "delete-records", f"{topic}:9", "--all", code=1).stderr.decode()


def test_a_slip_in_the_name_of_a_setting_is_answered_with_the_right_one(here: Run, topic: str) -> None:
    for words, right in (
        (["topics", "create", f"{topic}-2", "--config", "retentionms=5"], "retention.ms"),
        (["configs", "alter", "topic", topic, "--set", "retentionms=5"], "retention.ms"),
        (["configs", "alter", "topic", topic, "--append", "cleanup.polcy=compact"], "cleanup.policy"),
        (["configs", "alter", "group", "g", "--set", "session.timeout.ms=5"], "consumer.session.timeout.ms"),
        (["configs", "alter", "broker", "default", "--set", "log.retentionms=5"], "log.retention.ms"),
        (["configs", "alter", "topic", topic, "--unset", "retentionms"], "retention.ms"),
    ):
        is_taken = "broker" in words or "--unset" in words
        error = here(*words, code=0 if is_taken else 1).stderr.decode()
        assert error.endswith(f"; did you mean {right}?\n") and error.count("\n") == 1, error


def test_a_leader_elected_uncleanly_is_asked_for_until_the_broker_that_describes_it_has_heard_of_it() -> None:
    """Here it tells the leader of one partition at once, and that of the other when it is asked for the third time."""
    elections = 0
    late = [-1, -1, 7]

    def elect(wanted: Any) -> M.ElectLeadersResponse:
        nonlocal elections
        elections += 1
        answer = M.ElectLeadersResponse
        results = [
            answer.ReplicaElectionResult(
                topic=each.topic,
                partition_result=[answer.PartitionResult(partition_id=one) for one in each.partitions],
            )
            for each in wanted.topic_partitions
        ]
        return answer(replica_election_results=results)

    def script(peer: Peer) -> None:
        for asked in peer.requests():
            message: Any = asked.message
            if asked.api_key == ApiKey.ELECT_LEADERS:
                peer.respond(asked, elect(message))
            else:
                heard = [7, late.pop(0)] if elections and message.topics else [-1, -1]
                peer.respond(asked, answers.metadata({7: broker.port}, [answers.topic("views", heard)]))

    broker = ScriptedBroker(script)
    with broker:
        done = commands_here(f"127.0.0.1:{broker.port}")("topics", "elect-leaders", "views", "--unclean", "--json")
    assert from_json(done) == [{"topic": "views", "partition": at, "leader": 7} for at in (0, 1)]
    assert (elections, late) == (1, [])
