"""Print the messages of a topic, from an offset, a time, or as a member of a group.

Without a group the offsets are this command's own; with --group they are stored after the messages have been printed.
"""

from __future__ import annotations

import argparse
import math
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from kbroker.cli import arguments as args
from kbroker.cli.message_lines import encode_line
from kbroker.cli.offsets import partitions_by_leader, resolve_offsets
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from kbroker.net.blocking_client import RETRIABLE, BlockingClient, raise_for
from kbroker.protocol import messages as M
from kbroker.protocol.records import Record, read_batches

EXAMPLES = """examples:
  kbroker consume views                              what comes from now on, until Ctrl-C
  kbroker consume views --from-beginning --exit      what is there, then stop
  kbroker consume views --offset -10 --partition 0   the last ten of partition 0, and what comes
  kbroker consume views --since 2026-01-31T12:00:00 --show timestamp,key --max-messages 5
  kbroker consume views --group readers --json
"""

COLUMNS = ("partition", "offset", "timestamp", "key", "headers")
MAX_WAIT_MS = 500
MAX_BYTES = 4 << 20
PARTITION_MAX_BYTES = 1 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--from-beginning", action="store_true", help="with --group: where the group has no offset")
    start.add_argument("--offset", type=int, metavar="N", help="from offset N; -N: from the last N of each partition")
    start.add_argument("--since", type=args.moment, metavar="TIME", help="milliseconds, or as in 2026-01-31T12:00:00")
    who = parser.add_mutually_exclusive_group()
    who.add_argument("-p", "--partition", type=args.partition_list, metavar="LIST", help="as in 0,2-4 (default: all)")
    who.add_argument("-g", "--group", help="share the partitions with the group's other members")
    parser.add_argument("-n", "--max-messages", type=args.positive, metavar="N", help="stop after N messages")
    parser.add_argument("-e", "--exit", action="store_true", help="stop where the topic ends now")
    parser.add_argument(
        "--idle", type=args.positive_seconds, metavar="SECONDS", help="stop when no message has come for so long"
    )
    parser.add_argument(
        "--show", type=_columns, default=(), metavar="LIST", help=f"columns before the value: {','.join(COLUMNS)}"
    )
    parser.add_argument("--separator", default="\t", metavar="TEXT", help="between columns (default: a tab)")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each message")
    args.add_bootstrap(parser)


def run(arguments: argparse.Namespace) -> int:
    with args.connect(arguments) as client:
        if arguments.group is not None:
            _consume_as_member(client, arguments)
        else:
            _consume_alone(client, arguments)
    return 0


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in COLUMNS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(COLUMNS)}")
    return names


def _consume_alone(client: BlockingClient, arguments: argparse.Namespace) -> None:
    known = sorted(client.leaders(arguments.topic, allow_auto_creation=False))
    args.require_known_partitions(arguments.topic, arguments.partition or [], known)
    partitions = [TopicPartition(arguments.topic, number) for number in (arguments.partition or known)]
    reader = _Reader(client, arguments)
    reader.read_from(_start(client, arguments, partitions))
    while not reader.is_done():
        reader.poll()


def _consume_as_member(client: BlockingClient, arguments: argparse.Namespace) -> None:
    from kbroker.net.group_member import GroupMember

    # A member that is stopped leaves, so that the others need not wait for its session to end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    client.leaders(arguments.topic)
    member = GroupMember(client, arguments.group, arguments.topic)
    reader = _Reader(client, arguments)
    member.join()
    try:
        while True:
            committed = member.committed()
            fresh = [partition for partition in member.assignment if partition not in committed]
            reader.read_from({**committed, **_start(client, arguments, fresh)})
            while (is_stable := member.keep()) and not reader.is_done():
                reader.poll()
                member.commit(reader.take_positions())
            if is_stable:
                break
            member.join()
    except ProtocolError as error:
        if error.code not in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS):
            raise
        raise KbrokerError("the group was rebalanced before the offsets were stored; they will be read again") from None
    finally:
        member.leave()


def _start(
    client: BlockingClient, arguments: argparse.Namespace, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    if arguments.since is not None:
        return resolve_offsets(client, partitions, arguments.since)
    if arguments.from_beginning:
        return resolve_offsets(client, partitions, EARLIEST_TIMESTAMP)
    if arguments.offset is None:
        return resolve_offsets(client, partitions, LATEST_TIMESTAMP)
    if arguments.offset >= 0:
        return dict.fromkeys(partitions, arguments.offset)
    earliest = resolve_offsets(client, partitions, EARLIEST_TIMESTAMP)
    latest = resolve_offsets(client, partitions, LATEST_TIMESTAMP)
    return {p: max(earliest[p], latest[p] + arguments.offset) for p in partitions}


class _Reader:
    """Fetches from the leaders of some partitions and prints what comes."""

    def __init__(self, client: BlockingClient, arguments: argparse.Namespace):
        self._client = client
        self._arguments = arguments
        self._output = sys.stdout.buffer
        self._output_errors = select.poll()
        self._output_errors.register(self._output, 0)
        self._positions: dict[TopicPartition, int] = {}
        self._changed: set[TopicPartition] = set()
        self._ends: dict[TopicPartition, int] = {}
        self._leaders: dict[int, list[TopicPartition]] = {}
        self._printed = 0
        self._silent_since: float | None = None
        """When the first of the polls was begun that brought nothing, of those behind the last message."""
        self._is_idle = False
        """Whether one that was begun so much later brought nothing either."""

    def read_from(self, positions: dict[TopicPartition, int]) -> None:
        """Read these partitions and no others, each from its offset."""
        self._positions = dict(positions)
        self._changed.clear()
        self._silent_since = None
        self._leaders = partitions_by_leader(self._client, list(positions))
        if self._arguments.exit:
            self._ends = resolve_offsets(self._client, list(positions), LATEST_TIMESTAMP)

    def is_done(self) -> bool:
        arguments = self._arguments
        if arguments.max_messages is not None and self._printed >= arguments.max_messages:
            return True
        if arguments.exit and all(offset >= self._ends[p] for p, offset in self._positions.items()):
            return True
        return self._is_idle

    def take_positions(self) -> dict[TopicPartition, int]:
        """The next offsets of the partitions that were read since the last call."""
        taken = {partition: self._positions[partition] for partition in self._changed}
        self._changed.clear()
        return taken

    def poll(self) -> None:
        """One Fetch to each leader; prints what it brings. Waits up to MAX_WAIT_MS when there is nothing."""
        began, printed = time.monotonic(), self._printed
        wait_ms = self._wait_ms(began)
        if not self._leaders:
            time.sleep(wait_ms / 1000)
        for node_id, partitions in list(self._leaders.items()):
            answer = self._client.call(self._request(partitions, wait_ms), node_id)
            raise_for(answer.error_code, None, f"broker {node_id}")
            for topic in answer.responses:
                for data in topic.partitions:
                    self._take(TopicPartition(topic.topic, data.partition_index), data)
        if self._printed > printed:
            self._silent_since = None
        else:
            self._silent_since = self._silent_since or began
            idle_s = self._arguments.idle
            self._is_idle = idle_s is not None and began - self._silent_since >= idle_s
        self._output.flush()
        # Who reads the pipe may go while nothing comes that could not be written.
        if self._output_errors.poll(0):
            raise BrokenPipeError

    def _wait_ms(self, now: float) -> int:
        """How long a Fetch that begins now may wait: until --idle is over, when one more looks what has come."""
        idle_s: float | None = self._arguments.idle
        if idle_s is None:
            return MAX_WAIT_MS
        left_s = idle_s - (0 if self._silent_since is None else now - self._silent_since)
        return min(MAX_WAIT_MS, max(0, math.ceil(left_s * 1000)))

    def _request(self, partitions: Sequence[TopicPartition], wait_ms: int) -> M.FetchRequest:
        request = M.FetchRequest
        return request(
            replica_id=-1,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            session_id=0,
            session_epoch=-1,
            topics=[
                request.FetchTopic(
                    topic=self._arguments.topic,
                    partitions=[
                        request.FetchPartition(
                            partition=partition.partition_id,
                            fetch_offset=self._positions[partition],
                            partition_max_bytes=PARTITION_MAX_BYTES,
                        )
                        for partition in partitions
                    ],
                )
            ],
        )

    def _take(self, partition: TopicPartition, data: Any) -> None:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise ProtocolError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{partition} has no offset {self._positions[partition]}: it is out of range",
            )
        if data.error_code in RETRIABLE:
            self._leaders = partitions_by_leader(self._client, list(self._positions))
            return
        raise_for(data.error_code, None, str(partition))
        for batch in read_batches(data.records or b""):
            if batch.info.last_offset < self._positions[partition]:
                continue
            if not batch.info.is_control:
                for record in batch.records():
                    if record.offset >= self._positions[partition]:
                        if self._arguments.max_messages is not None and self._printed >= self._arguments.max_messages:
                            return
                        self._print(partition.partition_id, record)
                        self._positions[partition] = record.offset + 1
                        self._changed.add(partition)
            self._positions[partition] = batch.info.last_offset + 1
            self._changed.add(partition)

    def _print(self, partition_id: int, record: Record) -> None:
        self._printed += 1
        if self._arguments.json:
            line = encode_line(
                record.key,
                record.value,
                record.headers,
                partition=partition_id,
                offset=record.offset,
                timestamp=record.timestamp,
            ).encode()
        else:
            separator = self._arguments.separator.encode()
            columns = [_column(name, partition_id, record) for name in self._arguments.show]
            line = separator.join([*columns, b"" if record.value is None else record.value])
        self._output.write(line + b"\n")


def _column(name: str, partition_id: int, record: Record) -> bytes:
    if name == "key":
        return b"" if record.key is None else record.key
    if name == "headers":
        return b",".join(header.encode() + b"=" + (value or b"") for header, value in record.headers)
    number = {"partition": partition_id, "offset": record.offset, "timestamp": record.timestamp}[name]
    return str(number).encode()
