"""Targets of a member's replicas: what its leaders answer to its fetches, and what somebody tells it as the controller.

Control requests carry no proof of who sends them, and a leader may be damaged: the logs stay logs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.records import encode_batch, read_batches
from kbroker.replication.fetchers import view_of
from kbroker.replication.partitions import Role
from kbroker.rules import follower
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions
from tests.fuzz.batches import FIX_COUNT, FIX_CRC, FIX_LENGTH, FIX_MAGIC, put_right
from tests.fuzz.parsers import with_directory
from tests.fuzz.program import Program
from tests.fuzz.target import Target
from tests.kit.logs.home import LogHome
from tests.kit.parts.members import ME, Ask, Member

# --- the answers of a leader ------------------------------------------------------------------------------------------

EPOCH = 100
SMALL_SEGMENTS = LogOptions(segment_bytes=600, index_interval_bytes=0, index_max_bytes=240)
MOST_STEPS = 16


class _Trouble(NamedTuple):
    """What the fetch engine would tell of an answer."""

    kind: str
    error: int = 0
    offset: int = 0
    diverging_epoch: int = -1
    diverging_end: int = -1


def feed_replica(data: bytes) -> None:
    """Answers of a leader, one after the other. The log's batches stay in order, and are there after a kill."""
    with_directory(lambda folder: _follow(Program(data), folder))


def _follow(program: Program, folder: Path) -> None:
    home = LogHome(folder, options=SMALL_SEGMENTS)
    home.context.is_member = True
    log = home.create()
    log.open()
    log.follow(EPOCH)
    try:
        for _ in range(MOST_STEPS):
            if program.is_over:
                break
            _take(program, log)
            _assert_in_order(log)
        start = log.log_start_offset
        found = _facts(log, start)
        log = home.reopen(clean=False)
        assert _facts(log, start) == found, (_facts(log, start), found)
    finally:
        home.abandon()


def _take(program: Program, log: Log) -> None:
    state = log.state
    match program.byte() % 8:
        case 0:
            epoch, end = program.number(state.newest_epoch, 32), program.number(state.log_end_offset, 64)
            trouble = _Trouble("diverging", diverging_epoch=epoch, diverging_end=end)
            _carry_out(log, follower.next_step(trouble, view_of(log)))
        case 1:
            _carry_out(log, follower.after_latest(program.number(state.log_end_offset, 64), view_of(log)))
        case 2:
            _carry_out(
                log, follower.after_earliest(program.number(min(state.log_end_offset + 3, 2**63 - 1), 64), view_of(log))
            )
        case 3:
            log.follow_start(max(log.log_start_offset, program.number(state.high_watermark, 64)))
        case _:
            records = b"".join(_batch(program, state.log_end_offset + at) for at in range(1 + program.byte() % 3))
            mark, start = program.number(state.log_end_offset, 64), program.number(state.log_start_offset, 64)
            code = state.append_as_follower(records, EPOCH, mark, start)
            ErrorCode(code)


def _carry_out(log: Log, step: follower.Step) -> None:
    match step:
        case follower.TruncateTo(offset):
            log.truncate_to(offset)
        case follower.BeginAt(offset):
            log.begin_at(offset)


def _batch(program: Program, offset: int) -> bytes:
    """Return a batch that may follow at `offset`, with fields that are mostly right, and at times with other bytes."""
    count = 1 + program.byte() % 3
    made = bytearray(encode_batch([(1_700_000_000_000, b"k", b"value %d" % at) for at in range(count)]))
    struct.pack_into(">q", made, 0, program.number(min(offset, 2**63 - 1), 64))
    struct.pack_into(">i", made, 12, program.number(max(0, program.byte() % 4), 32))
    struct.pack_into(">h", made, 21, program.number(0, 16))
    struct.pack_into(">i", made, 23, program.number(count - 1, 32))
    struct.pack_into(">q", made, 43, program.number(-1, 64))
    struct.pack_into(">h", made, 51, program.number(-1, 16))
    struct.pack_into(">i", made, 53, program.number(-1, 32))
    struct.pack_into(">i", made, 57, program.number(count, 32))
    fixes = program.pick([FIX_CRC, FIX_CRC, FIX_CRC | FIX_LENGTH, FIX_CRC | FIX_COUNT, FIX_CRC | FIX_MAGIC, 0])
    whole = bytearray(put_right(fixes, bytes(made)))
    for _ in range(max(0, program.byte() - 240)):
        whole[program.byte() % len(whole)] = program.byte()
    return bytes(whole)


def _assert_in_order(log: Log) -> None:
    state = log.state
    assert 0 <= log.log_start_offset <= state.high_watermark <= state.log_end_offset
    epochs = log.epochs
    assert epochs == sorted(epochs)
    assert len({epoch for epoch, _ in epochs}) == len({start for _, start in epochs}) == len(epochs), epochs
    assert all(epoch <= EPOCH and start <= state.log_end_offset for epoch, start in epochs), epochs
    next_offset = log.log_start_offset
    for base, last in _batches(log):
        assert last >= base
        assert base >= next_offset or next_offset == log.log_start_offset
        next_offset = last + 1
    assert next_offset <= state.log_end_offset


def _batches(log: Log) -> Iterator[tuple[int, int]]:
    offset = log.log_start_offset
    while offset < log.state.log_end_offset:
        data = log.read(offset, 1 << 20, to_log_end=True)
        if not data:
            return
        for batch in read_batches(data):
            yield batch.info.base_offset, batch.info.last_offset
            offset = batch.info.last_offset + 1


def _facts(log: Log, start: int) -> Any:
    """What is in the log from `start` on: a kill may bring back what lies below. Nothing is asked of an empty log."""
    batches = [each for each in _batches(log) if each[1] >= start]
    # Below the start there may be records of a leader that has had later epochs.
    is_first = log.state.segments()[0].base_offset == start
    epochs = {max(start, at): epoch for epoch, at in log.epochs} if is_first else None
    return (batches, epochs, log.state.log_end_offset) if batches else None


def replica_seeds() -> Iterator[bytes]:
    good = bytes([4, 2]) + bytes(40)
    yield good * 3
    yield good + bytes([0, 0, 0]) + good
    for at in range(3):
        yield good + bytes([at, 200, 199]) + good
        yield good + bytes([at, 0, 245, at, 3]) + good
    for field in range(10):
        for number in (199, 201, 240, 244, 250):
            yield good + bytes([4, 0, 0]) + bytes(field) + bytes([number, 1]) + bytes(30) + good


# --- whoever says to be the controller --------------------------------------------------------------------------------

NAMES = ["t", "u", "..", "a/b", "x" * 250, ""]
BROKERS = [ME, 2, 3]


class _Logs:
    """Real logs for a member's partitions."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.manager = LogManager(StorageOptions((str(folder),)), is_member=True)
        known: dict[TopicPartition, tuple[UUID, LogOptions]] = {}
        self.manager.start(known.get, background=False)

    def get(self, topic_partition: TopicPartition) -> Log | None:
        log = self.manager.get(topic_partition)
        return None if log is None or log.state.state == "deleted" else log

    def expect(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self.manager.expect(topic_partitions)

    def open_or_create(self, topic: str, topic_id: UUID, partition_id: int, *, is_new: bool) -> Log:
        return self.manager.create(topic, topic_id, partition_id, LogOptions(file_delete_delay_ms=0), is_new=is_new)

    def delete(self, topic_partition: TopicPartition) -> None:
        self.manager.delete(topic_partition)

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        log = self.manager.get(topic_partition)
        return log is not None and log.state.state == "offline"


def feed_control(data: bytes) -> None:
    """LeaderAndIsr, StopReplica, UpdateMetadata, and answers to AlterPartition, with numbers that lie.

    Each is answered, logs and roles stay one, and nothing is made outside of the log directory.
    """
    with_directory(lambda folder: _control(Program(data), folder))


def _control(program: Program, folder: Path) -> None:
    logs = _Logs(folder)
    member = Member(logs)
    try:
        member.tell_brokers(*BROKERS)
        for _ in range(MOST_STEPS):
            if program.is_over:
                break
            _tell(program, member)
            _assert_roles(member, logs)
        legal = {
            f"{name}-{at.partition_id}" for name in NAMES[:2] for at in member.partitions.all() if at.topic == name
        }
        directories = {path.name for path in folder.iterdir() if path.is_dir() and not path.name.endswith("-delete")}
        assert directories <= legal | {f"{name}-{number}" for name in NAMES[:2] for number in logs_of(logs, name)}
    finally:
        member.partitions.stop()
        logs.manager.stop()


def logs_of(logs: _Logs, name: str) -> set[int]:
    return {each.topic_partition.partition_id for each in logs.manager.logs() if each.topic_partition.topic == name}


def _tell(program: Program, member: Member) -> None:
    match program.byte() % 8:
        case 0 | 1 | 2:
            _leader_and_isr(program, member)
        case 3:
            _update_metadata(program, member)
        case 4:
            _stop_replicas(program, member)
        case 5:
            member.clock.now_ms += program.short()
            member.partitions.tick()
        case 6:
            member.partitions.on_news([TopicPartition("t", 0), TopicPartition("u", 0)])
        case _:
            if member.asks:
                _answer(program, member.asks.pop(program.byte() % len(member.asks)))


def _brokers(program: Program) -> list[int]:
    return [program.number(program.pick(BROKERS), 32) for _ in range(program.byte() % 5)]


def _epochs(program: Program) -> dict[str, Any]:
    return {"controller_epoch": program.number(1, 32), "broker_epoch": program.number(100, 64)}


def _leader_and_isr(program: Program, member: Member) -> None:
    Q = M.LeaderAndIsrRequest
    topics = []
    for _ in range(1 + program.byte() % 2):
        states = [
            Q.LeaderAndIsrPartitionState(
                partition_index=program.number(0, 32),
                controller_epoch=program.number(1, 32),
                leader=program.number(program.pick(BROKERS), 32),
                leader_epoch=program.number(program.byte() % 8, 32),
                isr=_brokers(program),
                partition_epoch=program.number(program.byte() % 8, 32),
                replicas=[ME, *_brokers(program)] if program.byte() < 240 else _brokers(program),
                adding_replicas=_brokers(program),
                removing_replicas=_brokers(program),
                is_new=bool(program.byte() & 1),
                leader_recovery_state=program.number(0, 8),
            )
            for _ in range(1 + program.byte() % 2)
        ]
        topic_id = UUID(int=program.byte() % 3)
        topics.append(
            Q.LeaderAndIsrTopicState(topic_name=program.pick(NAMES), topic_id=topic_id.bytes, partition_states=states)
        )
    request = Q(controller_id=program.number(2, 32), topic_states=topics, **_epochs(program))
    answer = member.partitions.leader_and_isr(Q.decode(request.encode(7), 7), 7)
    M.LeaderAndIsrResponse.decode(answer.encode(7), 7)


def _update_metadata(program: Program, member: Member) -> None:
    U = M.UpdateMetadataRequest
    states = [
        U.UpdateMetadataPartitionState(
            partition_index=program.number(0, 32),
            leader=program.number(program.pick([*BROKERS, -2]), 32),
            leader_epoch=program.number(program.byte() % 8, 32),
            isr=_brokers(program),
            zk_version=program.number(program.byte() % 8, 32),
            replicas=_brokers(program),
            offline_replicas=_brokers(program),
        )
        for _ in range(program.byte() % 3)
    ]
    topic = U.UpdateMetadataTopicState(
        topic_name=program.pick(NAMES), topic_id=UUID(int=program.byte() % 3).bytes, partition_states=states
    )
    endpoint = U.UpdateMetadataEndpoint(
        host="h", port=9092, listener="PLAINTEXT", security_protocol=program.number(0, 16)
    )
    brokers = [U.UpdateMetadataBroker(id=each, endpoints=[endpoint]) for each in _brokers(program)]
    request = U(controller_id=2, topic_states=[topic], live_brokers=brokers, **_epochs(program))
    try:
        member.tell_metadata(request)
    except ProtocolError:
        pass


def _stop_replicas(program: Program, member: Member) -> None:
    S = M.StopReplicaRequest
    states = [
        S.StopReplicaPartitionState(
            partition_index=program.number(0, 32),
            leader_epoch=program.number(-2, 32),
            delete_partition=bool(program.byte() & 1),
        )
        for _ in range(1 + program.byte() % 2)
    ]
    topics = [S.StopReplicaTopicState(topic_name=program.pick(NAMES), partition_states=states)]
    request = S(controller_id=2, topic_states=topics, **_epochs(program))
    answer = member.partitions.stop_replicas(S.decode(request.encode(4), 4))
    M.StopReplicaResponse.decode(answer.encode(4), 4)


def _answer(program: Program, ask: Ask) -> None:
    how = program.byte() % 4
    if how == 0:
        ask.fail()
    elif how == 1:
        ask.answered(M.AlterPartitionResponse(error_code=program.number(0, 16)), 3)
    else:

        def judge(_: TopicPartition, part: M.AlterPartitionRequest.PartitionData) -> M.Struct:
            return M.AlterPartitionResponse.PartitionData(
                partition_index=program.number(part.partition_index, 32),
                error_code=program.number(0, 16),
                leader_id=program.number(ME, 32),
                leader_epoch=program.number(part.leader_epoch, 32),
                isr=[each.broker_id for each in part.new_isr_with_epochs] if how == 2 else _brokers(program),
                leader_recovery_state=program.number(0, 8),
                partition_epoch=program.number(part.partition_epoch + 1, 32),
            )

        ask.answer(judge)


def _assert_roles(member: Member, logs: _Logs) -> None:
    for at, hosted in member.partitions.all().items():
        log = logs.get(at)
        assert log is not None or hosted.role is Role.OFFLINE, at
        if log is not None and hosted.role is not Role.OFFLINE:
            assert log.state.role == ("follower" if hosted.role is Role.FOLLOWER else log.state.role)
            assert (hosted.role is Role.LEADER) == (log.state.role != "follower"), (at, hosted, log.state.role)
            assert log.leader_epoch == hosted.leader_epoch, (at, hosted, log.leader_epoch)


def control_seeds() -> Iterator[bytes]:
    lead = bytes([0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 1, 0, 2, 0, 0, 0, 0, 0, 2, 1, 0, 2, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0])
    yield lead
    yield lead * 3
    yield lead + bytes([5, 255, 255, 6, 7, 0, 2] + [0] * 12)
    for field in range(3, 30):
        for number in (199, 201, 240, 243, 244, 247):
            yield lead[:field] + bytes([number, 5]) + lead[field:] + bytes([4, 0, 0, 0, 1])
    for start in (3, 4, 5, 6, 7):
        yield lead + bytes([start]) + bytes(20) + lead


TARGETS = [
    Target("replica", feed_replica, replica_seeds, 512, share=3),
    Target("control", feed_control, control_seeds, 512, share=3),
]
