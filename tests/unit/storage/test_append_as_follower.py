"""A follower's log gets the leader's bytes, indexes and producers, however the leader's answers are cut."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.protocol.records import encode_batch
from kbroker.storage import file_names
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.logs.home import LogHome
from tests.kit.logs.quick_disk import memory_directory

EPOCH = 7
"""The leader epoch in which followers of these tests append."""


class Step(NamedTuple):
    """What the leader appends: records of a producer, a marker that ends its transaction, or a new leader epoch."""

    kind: str
    producer_id: int
    count: int
    size: int


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["plain", "idempotent", "transactional", "commit", "abort", "epoch"]),
        st.integers(1, 4),
        st.integers(1, 4),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=60,
)
options = st.tuples(
    st.sampled_from([600, 1500, 1 << 20]), st.sampled_from([0, 200, 4096]), st.sampled_from([48, 10 << 20])
).map(
    lambda drawn: LogOptions(
        segment_bytes=drawn[0], index_interval_bytes=drawn[1], index_max_bytes=drawn[2], verify_transactions=False
    )
)


def lead(log: Log, history: list[Step]) -> None:
    """Append a history as the leader does."""
    sequences: dict[int, int] = {}
    open_transactions: set[int] = set()
    for at, step in enumerate(history):
        now = 1_700_000_000_000 + at * 1000
        values = [(now + number, None, b"v" * step.size) for number in range(step.count)]
        if step.kind == "epoch":
            log.be_alone(log.leader_epoch + 1)
        elif step.kind == "plain":
            log.append(encode_batch(values))
        elif step.kind in ("commit", "abort"):
            log.append_marker(step.producer_id, 0, 0, commit=step.kind == "commit")
            open_transactions.discard(step.producer_id)
        elif step.kind == "transactional" or step.producer_id not in open_transactions:
            is_transactional = step.kind == "transactional"
            log.append(
                encode_batch(
                    values, producer_id=step.producer_id, producer_epoch=0,
                    base_sequence=sequences.get(step.producer_id, 0), is_transactional=is_transactional,
                )
            )  # fmt: skip
            sequences[step.producer_id] = sequences.get(step.producer_id, 0) + step.count
            if is_transactional:
                open_transactions.add(step.producer_id)


def everything(log: Log) -> bytes:
    found = b""
    for segment in log.state.segments():
        found += Path(log.path_of(segment.base_offset, file_names.LOG)).read_bytes()
    return found


def whole_size(answer: bytes) -> int:
    at = 0
    while at + 12 <= len(answer):
        size = 12 + int.from_bytes(answer[at + 8 : at + 12], "big")
        if at + size > len(answer):
            break
        at += size
    return at


def files_of(log: Log) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in Path(log.path).iterdir()
        if path.name not in ("partition.metadata", "leader-epoch-checkpoint")
    }


@pytest.fixture
def home(tmp_path: Path) -> LogHome:
    return LogHome(tmp_path)


def follower_of(home: LogHome) -> Log:
    log = home.create()
    log.open()
    log.follow(EPOCH)
    return log


@settings(deadline=None, max_examples=100)
@given(history=steps, log_options=options, sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=5))
def test_a_follower_has_the_bytes_indexes_and_producers_of_its_leader(
    history: list[Step], log_options: LogOptions, sizes: list[int]
) -> None:
    with tempfile.TemporaryDirectory(dir=memory_directory()) as path:
        homes = []
        for name in ("leader", "follower"):
            Path(path, name).mkdir()
            homes.append(LogHome(Path(path, name), options=log_options))
        leader = homes[0].create()
        leader.open()
        lead(leader, history)
        records = everything(leader)
        follower = follower_of(homes[1])
        at = 0
        number = 0
        while at < len(records):
            first = 12 + int.from_bytes(records[at + 8 : at + 12], "big")
            answer = records[at : at + max(sizes[number % len(sizes)], first)]
            number += 1
            assert follower.state.append_as_follower(answer, EPOCH, leader.high_watermark, 0) == 0
            at += whole_size(answer)
            assert follower.state.size == at
        for question in ("log_end_offset", "high_watermark", "last_stable_offset"):
            assert getattr(follower.state, question) == getattr(leader.state, question), question
        for offset in range(leader.log_end_offset):
            assert follower.epoch_at(offset) == leader.epoch_at(offset)
        assert follower.active_producers() == leader.active_producers()
        assert follower.aborted_transactions(0, 1 << 30) == leader.aborted_transactions(0, 1 << 30)
        for log in (leader, follower):
            log.close()
        assert files_of(follower) == files_of(leader)
        for each in homes:
            each.abandon()
