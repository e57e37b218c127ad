"""After a restart the groups are those that the log describes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.errors import ErrorCode
from kbroker.groups import records
from kbroker.model import TopicPartition
from kbroker.protocol.records import ControlType, encode_batch
from kbroker.rules.group_member import Leaving
from kbroker.rules.group_offsets import CommittedOffset
from kbroker.rules.group_state import GroupState
from tests.kit.logs.home import LogHome
from tests.kit.wire.batches import encode_control_batch

from .conftest import Home, OneLog

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def known(home: Home) -> dict[str, Any]:
    """Return what a restart has to keep of every group."""
    found: dict[str, Any] = {}
    for shard in home.coordinator.shards.active():
        for group_id, served in shard.groups.items():
            machine = served.machine
            members = [
                (m.member_id, m.instance_id, m.client_id, m.client_host, m.rebalance_timeout_ms, m.session_timeout_ms,
                 machine.metadata_of(m), m.assignment)
                for m in machine.members.values()
            ]  # fmt: skip
            about = (machine.state, machine.protocol_type, machine.protocol_name, machine.generation, machine.leader)
            found[group_id] = (*about, members, served.offsets.committed, served.state_timestamp_ms)
    return found


def test_members_generation_and_assignments_survive(home: Home) -> None:
    joined = home.form(instance_id="s")
    home.commit({P0: 5}, generation=1, member_id=joined.member_id, instance_id="s", metadata="m")
    before = known(home)
    home.restart()
    assert known(home) == before
    assert home.coordinator.heartbeat("g", 1, joined.member_id, "s") is ErrorCode.NONE
    assert home.sync("g", 1, joined.member_id, instance_id="s")[0].assignment == b"all"


def test_members_that_do_not_come_back_lose_their_session(home: Home) -> None:
    home.form()
    home.restart()
    home.advance(9_999)
    assert home.coordinator.describe("g").state == "Stable"
    home.advance(1)
    assert home.coordinator.describe("g").state == "Empty"


def test_a_static_member_replaced_before_the_restart_is_still_replaced(home: Home) -> None:
    old = home.form(instance_id="s")
    (new,) = home.join(instance_id="s")
    home.restart()
    assert home.coordinator.heartbeat("g", 1, new.member_id, "s") is ErrorCode.NONE
    assert home.coordinator.heartbeat("g", 1, old.member_id, "s") is ErrorCode.FENCED_INSTANCE_ID


def test_a_generation_that_was_not_stored_is_not_there(home: Home) -> None:
    joined = home.form()
    home.join()
    home.join(member_id=joined.member_id)
    assert home.coordinator.describe("g").state == "CompletingRebalance"
    home.restart()
    described = home.coordinator.describe("g")
    assert described.state == "Stable" and [m.member_id for m in described.members] == [joined.member_id]


def test_a_group_over_the_limit_after_the_restart_is_rebalanced(home: Home) -> None:
    first = home.form()
    home.join()
    (again,) = home.join(member_id=first.member_id)
    home.sync("g", again.generation, again.leader)
    home.options = type(home.options)(max_size=1)
    home.restart()
    assert home.coordinator.heartbeat("g", again.generation, first.member_id, None) is ErrorCode.REBALANCE_IN_PROGRESS


step = st.one_of(
    st.tuples(st.just("form"), st.sampled_from(["a", "b"]), st.sampled_from([None, "s"])),
    st.tuples(st.just("commit"), st.sampled_from(["a", "b", "c"]), st.integers(0, 3), st.integers(0, 100)),
    st.tuples(st.just("leave"), st.sampled_from(["a", "b"])),
    st.tuples(st.just("delete"), st.sampled_from(["a", "b", "c"])),
    st.tuples(st.just("delete offsets"), st.sampled_from(["a", "b", "c"]), st.integers(0, 3)),
    st.tuples(st.just("forget topic")),
    st.tuples(st.just("advance"), st.sampled_from([1000, 20_000, 600_000, 4 * 24 * 3_600_000])),
    st.tuples(st.just("restart")),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, max_size=25))
def test_whatever_has_happened_a_restart_changes_nothing(steps: list[tuple[Any, ...]]) -> None:
    home = Home()
    for kind, *arguments in steps:
        if kind == "form":
            group_id, instance_id = arguments
            if home.coordinator.describe(group_id).state in ("Dead", "Empty"):
                home.form(group_id, instance_id=instance_id)
        elif kind == "commit":
            group_id, partition_id, offset = arguments
            members = home.coordinator.describe(group_id).members
            who: dict[str, Any] = {}
            if members:
                generation = known(home)[group_id][3]
                who = {"generation": generation, "member_id": members[0].member_id}
            home.commit({TopicPartition("tuv"[partition_id % 3], partition_id): offset}, group_id, **who)
        elif kind == "leave":
            leaving = [Leaving(member.member_id) for member in home.coordinator.describe(arguments[0]).members]
            home.coordinator.leave(arguments[0], leaving)
        elif kind == "delete":
            home.coordinator.delete_group(arguments[0])
        elif kind == "delete offsets":
            home.coordinator.offsets.delete(arguments[0], [TopicPartition("tuv"[arguments[1] % 3], arguments[1])])
        elif kind == "forget topic":
            home.coordinator.offsets.forget_topics(["u"])
        elif kind == "advance":
            home.advance(arguments[0])
        else:
            home.restart()
    # Groups in the middle of a rebalance or without anything in the log are not what a restart has to keep.
    before = {
        group_id: about
        for group_id, about in known(home).items()
        if about[0] in (GroupState.STABLE, GroupState.EMPTY) and (about[3] or about[6])
    }
    home.restart()
    assert known(home) == before


def test_the_same_holds_on_a_real_log(tmp_path: Path) -> None:
    topic = OneLog(LogHome(tmp_path))
    home = Home(topic, offsets_load_buffer_bytes=200)
    for number in range(50):
        home.commit({TopicPartition("t", n): number for n in range(3)}, group_id=f"simple-{number % 7}")
    home.form("a", instance_id="s")
    home.form("b")
    before = known(home)
    home.coordinator.stop()
    topic.reopen()
    home.start()
    assert known(home) == before and len(before) == 9


# --- transactions, as another broker may have left them -------------------------------------------------------
def transactional(producer_id: int, partition: TopicPartition, offset: int) -> bytes:
    value = records.offset_value(CommittedOffset(offset, -1, "", 1))
    entry = (1, records.offset_key("g", partition), value)
    return encode_batch([entry], producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)


def marker(producer_id: int, kind: ControlType) -> bytes:
    return encode_control_batch(kind, 1, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0)


@pytest.mark.parametrize(
    ("batches", "offset", "stable"),
    [
        ([lambda: transactional(1, P0, 7)], -1, False),
        ([lambda: transactional(1, P0, 7), lambda: marker(1, ControlType.COMMIT)], 7, True),
        ([lambda: transactional(1, P0, 7), lambda: marker(1, ControlType.ABORT)], -1, True),
        ([lambda: transactional(1, P0, 7), lambda: marker(2, ControlType.COMMIT)], -1, False),
        ([lambda: transactional(1, P0, 7), lambda: transactional(2, P0, 9), lambda: marker(2, ControlType.COMMIT),
          lambda: marker(1, ControlType.COMMIT)], 9, True),
    ],
)  # fmt: skip
def test_offsets_of_transactions_count_when_they_are_committed(
    home: Home, batches: list[Callable[[], bytes]], offset: int, stable: bool
) -> None:
    for batch in batches:
        home.replica_of("g").put(batch())
    home.restart()
    assert home.fetch("g", P0) == {"t-0": offset}
    _, (fetched,) = home.coordinator.offsets.fetch("g", [P0], require_stable=True)
    assert fetched.error is (ErrorCode.NONE if stable else ErrorCode.UNSTABLE_OFFSET_COMMIT)


def test_a_commit_after_a_transactions_offsets_and_before_its_end_wins(home: Home) -> None:
    home.replica_of("g").put(transactional(1, P0, 7))
    home.commit({P0: 8})
    home.replica_of("g").put(marker(1, ControlType.COMMIT))
    home.restart()
    assert home.fetch("g", P0) == {"t-0": 8}


# --- damage -----------------------------------------------------------------------------------------------
def test_records_that_cannot_be_read_are_skipped_and_the_rest_is_there(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    home.commit({P0: 5})
    odd: list[tuple[int, bytes | None, bytes | None]] = [
        (1, None, b"no key"),
        (1, b"", b"an empty key"),
        (1, b"\0\7what", b"a kind of record that nobody has told us of"),
        (1, records.offset_key("g", P1), b"\0\x63"),
        (1, records.group_key("g"), b"\0\3\xff"),
    ]
    home.replica_of("g").put(encode_batch(odd))
    home.commit({P1: 6}, group_id="g")
    home.restart()
    assert home.fetch("g", P0, P1) == {"t-0": 5, "t-1": 6}
    assert len(caplog.records) >= 3


def test_a_batch_that_is_damaged_is_skipped_and_the_rest_is_there(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    for offset in range(3):
        home.commit({TopicPartition("t", offset): offset})
    replica = home.replica_of("g")
    damaged = bytearray(replica.batches[1])
    damaged[-1] ^= 0xFF
    replica.batches[1] = bytes(damaged)
    home.restart()
    assert home.fetch() == {"t-0": 0, "t-2": 2}
    assert "skipped" in caplog.text


def test_gaps_that_compaction_has_left_are_no_damage(home: Home) -> None:
    for offset in range(4):
        home.commit({P0: offset})
    replica = home.replica_of("g")
    del replica.batches[0:2]
    home.restart()
    assert home.fetch() == {"t-0": 3}
    replica.batches.clear()
    home.restart()
    assert home.fetch() == {}


def test_a_partition_is_read_in_pieces(make_home: Callable[..., Home]) -> None:
    home = make_home(offsets_load_buffer_bytes=300)
    for offset in range(20):
        home.commit({P0: offset})
    reads = home.replica_of("g").reads
    home.restart()
    assert home.fetch() == {"t-0": 19}
    assert home.replica_of("g").reads > reads + 5
