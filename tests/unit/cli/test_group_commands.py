"""`kbroker groups` against a real broker."""

from __future__ import annotations

import json
import signal
import subprocess

from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.commands import Run, command_of, commands_of, from_json, lines, on_a_terminal

MADE = ["--new-group", "--execute"]


def test_a_group_goes_on_where_it_stopped_and_shows_its_lag(
    broker: BrokerProcess, kbroker: Run, here: Run, topic: str
) -> None:
    group = f"group-of-{topic}"
    kbroker("produce", topic, "--partition", "1", stdin=b"1\n2\n3\n")
    words = ["--group", group, "--from-beginning", "--idle", "1"]
    assert lines(kbroker("consume", topic, *words, "--max-messages", "2")) == [b"1", b"2"]
    (described,) = from_json(here("groups", "describe", group, "--json"))
    rows = {row["partition"]: row for row in described["partitions"]}
    assert (described["state"], rows[1]["offset"], rows[1]["end_offset"], rows[1]["lag"]) == ("Empty", 2, 3, 1)
    assert lines(kbroker("consume", topic, *words)) == [b"3"]
    assert {"group": group, "state": "Empty", "type": "classic", "protocol_type": "consumer"} in from_json(
        here("groups", "list", "--json")
    )
    assert group.encode() in here("groups", "list").stdout
    code, shown = on_a_terminal(["consume", topic, *words, "-b", broker.address])
    assert code == 0
    assert shown == f"group {group!r} goes on where it was; kbroker groups reset-offsets {group} moves it\n"


def test_who_waits_for_the_other_members_is_not_idle() -> None:
    with BrokerProcess({"group.initial.rebalance.delay.ms": 500}) as broker:
        kbroker = commands_of(broker.address)
        kbroker("produce", "views", stdin=b"1\n")
        words = ["--group", "readers", "--from-beginning", "--idle", "0.2"]
        assert lines(kbroker("consume", "views", *words)) == [b"1"]


def test_two_members_share_the_partitions_and_leave_when_stopped(
    kbroker: Run, here: Run, broker: BrokerProcess, topic: str
) -> None:
    group = f"pair-of-{topic}"
    command = command_of("consume", topic, "--group", group, "-b", broker.address)
    members = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    shares: list[int] = []
    while sorted(shares) != [1, 2]:
        assert all(member.poll() is None for member in members)
        (described,) = (
            from_json(here("groups", "describe", group, "--json"))
            if shares or group.encode() in (here("groups", "list").stdout)
            else ({"members": [], "state": ""},)
        )
        shares = [len(member["partitions"]) for member in described["members"]]
    refused = here("groups", "reset-offsets", group, "--topic", topic, "--to-earliest", code=1).stderr.decode()
    assert "stop its members first" in refused
    for member, number in zip(members, (signal.SIGTERM, signal.SIGINT), strict=True):
        member.send_signal(number)
        member.communicate(timeout=30)
    assert from_json(here("groups", "describe", group, "--json"))[0]["members"] == []


def test_offsets_are_reset_in_every_way(kbroker: Run, here: Run, topic: str) -> None:
    group = f"reset-of-{topic}"
    messages = [{"value": str(i), "partition": 0, "timestamp": 1000 + i} for i in range(10)]
    kbroker("produce", topic, "--json", stdin="\n".join(map(json.dumps, messages)).encode())

    def offset() -> int:
        (described,) = from_json(here("groups", "describe", group, "--json"))
        return int(described["partitions"][0]["offset"])

    def reset(*words: str) -> None:
        here("groups", "reset-offsets", group, "--topic", f"{topic}:0", *words)

    reset("--to-latest", *MADE)
    assert offset() == 10
    for words, expected in (
        (["--to-earliest"], 0),
        (["--to-offset", "4"], 4),
        (["--shift-by", "3"], 7),
        (["--shift-by", "-2"], 5),
        (["--shift-by", "100"], 10),
        (["--to-time", "1006"], 6),
        (["--to-time", "9999"], 10),
    ):
        reset(*words, "--execute")
        assert offset() == expected, words
    moved = from_json(here("groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--json", "--execute"))
    assert moved == [{"topic": topic, "partition": 0, "offset": 10, "new_offset": 0, "note": None}]


def test_a_reset_is_a_plan_until_it_is_executed(kbroker: Run, here: Run, topic: str) -> None:
    group = f"planned-of-{topic}"
    kbroker("produce", topic, "--partition", "1", stdin=b"1\n2\n")
    words = ["groups", "reset-offsets", group, "--topic", f"{topic}:1"]
    here(*words, "--to-latest", *MADE)
    planned = here(*words, "--to-offset", "7")
    assert planned.stdout.decode().splitlines()[1].split(maxsplit=4) == [topic, "1", "2", "2", "cut: 7 is past the end"]
    assert planned.stderr == b"kbroker: this is the plan, and nothing is done yet: --execute does it\n"
    (row,) = from_json(planned := here(*words, "--shift-by", "-3", "--json", "--dry-run"))
    assert (row["new_offset"], row["note"]) == (0, "cut: -1 is before the beginning") and not planned.stderr
    (row,) = from_json(here(*words, "--to-time", "99999999999999", "--json"))
    assert (row["new_offset"], row["note"]) == (2, "the end: no message is so late")
    assert from_json(here("groups", "describe", group, "--json"))[0]["partitions"][0]["offset"] == 2


def test_a_group_that_is_not_there_is_said_and_made_only_if_wanted(here: Run, topic: str) -> None:
    group = f"wanted-of-{topic}"
    words = ["groups", "reset-offsets", "--topic", topic, "--to-latest"]
    for how in ([], ["--execute"], ["--dry-run"]):
        error = here(*words, group, *how, code=1).stderr.decode()
        assert f"there is no group {group!r}" in error and error.endswith("; --new-group makes it\n")
    here(*words, group, "--new-group")
    here("groups", "describe", group, code=1)
    here(*words, group, *MADE)
    error = here(*words, f"{group}x", code=1).stderr.decode()
    assert error == f"kbroker: there is no group '{group}x'; did you mean {group}?; --new-group makes it\n"


def test_several_groups_are_described_and_one_that_is_missing_hides_no_other(here: Run, topic: str) -> None:
    groups = [f"{name}-of-{topic}" for name in ("first", "second")]
    for group in groups:
        here("groups", "reset-offsets", group, "--topic", topic, "--to-latest", *MADE)
    assert [each["group"] for each in from_json(here("groups", "describe", *groups, "--json"))] == groups
    text = here("groups", "describe", *groups).stdout.decode()
    assert [line.split()[0] for line in text.splitlines() if "Empty, 0 members" in line] == groups
    some = here("groups", "describe", groups[0], "?", groups[1], "--json", code=1)
    assert [each["group"] for each in from_json(some)] == groups
    assert some.stderr == b"kbroker: there is no group '?'\n"
    everything = from_json(here("groups", "describe", "--all", "--json"))
    assert {each["group"] for each in everything} >= set(groups)
    assert all(group in here("groups", "describe", "--all").stdout.decode() for group in groups)
    for words in ([], ["--all", groups[0]]):
        assert "name groups, or --all" in here("groups", "describe", *words, code=2).stderr.decode()


def test_offsets_of_single_topics_are_deleted_even_of_those_that_are_gone(kbroker: Run, here: Run, topic: str) -> None:
    group, gone = f"forgetting-{topic}", f"{topic}-gone"
    here("topics", "create", gone, "--partitions", "1")
    here("groups", "reset-offsets", group, "--topic", topic, "--topic", gone, "--to-latest", *MADE)

    def known() -> list[tuple[str, int]]:
        (described,) = from_json(here("groups", "describe", group, "--json"))
        return [(each["topic"], each["partition"]) for each in described["partitions"]]

    assert known() == [(topic, 0), (topic, 1), (topic, 2), (gone, 0)]
    here("groups", "delete-offsets", group, "--topic", f"{topic}:0,2", "--topic", gone)
    assert known() == [(topic, 1)]
    nothing = here("groups", "delete-offsets", group, "--topic", f"{topic}:0", code=1).stderr.decode()
    assert nothing == f"kbroker: group {group!r} has no offsets there of topic {topic!r}\n"


def test_groups_of_both_protocols_are_told_apart_and_show_their_members(
    broker: BrokerProcess, kbroker: Run, here: Run, topic: str
) -> None:
    group = f"new-{topic}"
    kbroker("produce", topic, stdin=b"x\n")
    command = command_of("consume", topic, "-g", group, "-b", broker.address)
    command += ["--from-beginning", "-X", "group.protocol=consumer"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as member:
        try:
            assert member.stdout is not None and member.stdout.readline() == b"x\n"
            while len(rows := lines(here("groups", "describe", group, "--members"))) != 3 or topic not in str(rows):
                assert member.poll() is None
            head, titles, row = rows
            assert head == f"{group}  Stable, 1 member, uniform".encode()
            assert titles.split() == [b"member", b"client", b"host", b"instance", b"partitions"]
            assert row.split()[1] == b"kbroker-cli" and row.split()[-3:] == [f"{topic}-{n}".encode() for n in range(3)]
            told = {"group": group, "state": "Stable", "type": "consumer", "protocol_type": "consumer"}
            assert told in from_json(here("groups", "list", "--type", "consumer", "--state", "Stable", "--json"))
            assert told not in from_json(here("groups", "list", "--type", "classic", "--json"))
            refused = here("groups", "reset-offsets", group, "--topic", topic, "--to-latest", code=1).stderr
            assert b"is Stable: stop its members first" in refused
        finally:
            member.terminate()
            member.wait(60)
    assert told not in from_json(here("groups", "list", "--state", "Stable", "--json"))
    here("groups", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute")
    here("groups", "delete", group)


def test_groups_are_deleted_and_unknown_ones_are_an_error(kbroker: Run, here: Run, topic: str) -> None:
    group = f"deleted-of-{topic}"
    here("groups", "reset-offsets", group, "--topic", topic, "--to-latest", *MADE)
    here("groups", "delete", group)
    assert "there is no group" in here("groups", "describe", group, code=1).stderr.decode()
    assert "there is no group" in here("groups", "delete", group, code=1).stderr.decode()


def test_groups_are_deleted_though_one_of_them_is_missing(here: Run, topic: str) -> None:
    groups = [f"{name}-of-{topic}" for name in ("gone", "kept")]
    for group in groups:
        here("groups", "reset-offsets", group, "--topic", topic, "--to-latest", *MADE)
    error = here("groups", "delete", f"{groups[1]}x", groups[0], code=1).stderr.decode()
    assert error == f"kbroker: there is no group '{groups[1]}x'; did you mean {groups[1]}?\n"
    assert [each["group"] for each in from_json(here("groups", "list", "--json")) if topic in each["group"]] == groups[
        1:
    ]


def test_groups_are_listed_by_state_and_a_slip_in_it_is_refused(here: Run, topic: str) -> None:
    here("groups", "reset-offsets", f"empty-{topic}", "--topic", topic, "--to-latest", *MADE)
    assert f"empty-{topic}".encode() in here("groups", "list", "--state", "empty").stdout
    assert "did you mean Empty?" in here("groups", "list", "--state", "Emty", code=2).stderr.decode()
