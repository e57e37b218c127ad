"""Print the messages of a topic, from an offset, a time, or as a member of a group.

Without a group no offsets are stored; with --group they are stored after the messages have been printed.
"""

from __future__ import annotations

import argparse
import select
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kbroker.cli import arguments as args
from kbroker.cli import message_formats as formats
from kbroker.cli.client_options import add_cluster, client_options, connect, make_client
from kbroker.cli.output import print_note
from kbroker.cli.topic_facts import described
from kbroker.client.config.consumer import CONSUMER
from kbroker.client.consumer.consumer import Consumer
from kbroker.client.consumer.holdings import RebalanceListener
from kbroker.client.errors import CommitFailed
from kbroker.errors import KbrokerError
from kbroker.model import TopicPartition

EXAMPLES = """examples:
  kbroker consume views                              what comes from now on, until Ctrl-C
  kbroker consume views --from-beginning --exit      what is there, then stop
  kbroker consume views --offset -10 --partition 0   the last ten of partition 0, and what comes
  kbroker consume views --since 2026-01-31T12:00:00 --show timestamp,key --max-messages 5
  kbroker consume views --format '{time} {partition}@{offset} {key}={value}'
  kbroker consume views --group readers --format json
"""

POLL_S = 0.5
QUEUED_BYTES = 8 << 20  #: bytes that are fetched ahead of what is printed
SESSION_TIMEOUT_MS = 10_000  #: after so long the group's other members take over from a command that was killed


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
    parser.add_argument("--committed", action="store_true", help="no messages of transactions that are open or aborted")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "-f",
        "--format",
        type=formats.of_name,
        default=formats.TEXT,
        help="text: the value; json: one line of JSON for each message; or a template with "
        + ", ".join(f"{{{field}}}" for field in formats.FIELDS),
    )
    how.add_argument(
        "--json", action="store_const", const=formats.JSON, dest="format", help="the same as --format json"
    )
    parser.add_argument(
        "--show",
        type=formats.columns,
        default=(),
        metavar="LIST",
        help=f"columns before the value: {','.join(formats.COLUMNS)}",
    )
    parser.add_argument("--separator", default="\t", metavar="TEXT", help="between columns (default: a tab)")
    add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    with connect(arguments) as admin:
        topic = described(admin, [arguments.topic])[arguments.topic]
    known = [each.partition for each in topic.partitions]
    args.require_known_partitions(arguments.topic, arguments.partition or [], known)
    _say_what_is_awaited(arguments)
    with make_client(Consumer, _options(arguments)) as consumer:
        reader = _Reader(consumer, arguments)
        if arguments.group is not None:
            # On SIGTERM leave the group, so that the other members need not wait for the session to end.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            consumer.subscribe(arguments.topic, _Member(reader, consumer, arguments))
        else:
            start = _start(
                consumer, arguments, [TopicPartition(arguments.topic, n) for n in arguments.partition or known]
            )
            consumer.assign(start)
            reader.add(start)
        while not reader.is_done():
            if reader.poll() and arguments.group is not None:
                _commit(consumer)
    return 0


def _say_what_is_awaited(arguments: argparse.Namespace) -> None:
    """Tell the user that only new messages are printed, and so maybe nothing for a while."""
    if not _names_a_start(arguments) and not arguments.exit and arguments.group is None:
        print_note("messages from now on; --from-beginning shows what is there, Ctrl-C ends")


def _names_a_start(arguments: argparse.Namespace) -> bool:
    """Return whether the user has said where to begin."""
    return bool(arguments.from_beginning or arguments.offset is not None or arguments.since is not None)


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    own: dict[str, Any] = {"auto_offset_reset": "none"}
    if arguments.group is not None:
        own = {"auto_offset_reset": "latest", "enable_auto_commit": False, "group_id": arguments.group}
    if arguments.from_beginning:  # the beginning may have moved by then: the broker may delete unread messages
        own["auto_offset_reset"] = "earliest"
    isolation = "read_committed" if arguments.committed else "read_uncommitted"
    options = client_options(
        arguments,
        CONSUMER,
        isolation_level=isolation,
        queued_max_bytes=QUEUED_BYTES,
        allow_auto_create_topics=False,
        **own,
    )
    if arguments.group is not None and options.get("group.protocol", "classic").lower() == "classic":
        options.setdefault("session.timeout.ms", SESSION_TIMEOUT_MS)
    return options


def _commit(consumer: Consumer) -> None:
    try:
        consumer.commit()
    except CommitFailed as error:
        print(f"kbroker: what was printed will be read again: {error}", file=sys.stderr)


class _Member(RebalanceListener):
    """Seeks to the wanted start if the group has no offset yet, and tells the reader which partitions come and go."""

    def __init__(self, reader: _Reader, consumer: Consumer, arguments: argparse.Namespace):
        self._reader = reader
        self._consumer = consumer
        self._arguments = arguments

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        committed = self._consumer.committed(partitions)
        fresh = [each for each in partitions if committed[each] is None]
        if len(fresh) < len(partitions) and _names_a_start(self._arguments):
            group = self._arguments.group
            print_note(f"group {group!r} goes on where it was; kbroker groups reset-offsets {group} moves it")
        for partition, offset in _start(self._consumer, self._arguments, fresh).items():
            self._consumer.seek(*partition, offset)
        self._reader.add(partitions)

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self._reader.remove(partitions)


def _start(
    consumer: Consumer, arguments: argparse.Namespace, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the offset at which to begin in each partition. Raises KbrokerError if `--offset` is beyond an end."""
    if not partitions:
        return {}
    if arguments.from_beginning:
        return consumer.beginning_offsets(partitions)
    ends = consumer.end_offsets(partitions)
    if arguments.offset is not None and arguments.offset >= 0:
        for partition, end in ends.items():
            if arguments.offset > end:
                raise KbrokerError(f"{partition}: there is no offset {arguments.offset}, it ends at {end}")
        return dict.fromkeys(partitions, arguments.offset)
    if arguments.since is not None:
        found = consumer.offsets_for_times(dict.fromkeys(partitions, arguments.since))
        return {each: ends[each] if offset is None else offset for each, offset in found.items()}
    if arguments.offset is None:
        return ends
    earliest = consumer.beginning_offsets(partitions)
    return {each: max(earliest[each], ends[each] + arguments.offset) for each in partitions}


class _Reader:
    """Prints the messages that a consumer reads."""

    def __init__(self, consumer: Consumer, arguments: argparse.Namespace):
        self._consumer = consumer
        self._arguments = arguments
        if arguments.format == formats.TEXT:
            self._write = formats.text_of(arguments.show, arguments.separator)
        elif arguments.format == formats.JSON:
            self._write = formats.json_of
        else:
            self._write = formats.template(arguments.format)
        self._output = sys.stdout.buffer
        self._output_errors = select.poll()
        self._output_errors.register(self._output, 0)
        self._partitions: set[TopicPartition] | None = None  # None: the group has not given any yet
        self._ends: dict[TopicPartition, int] = {}
        self._printed = 0
        self._heard_at = 0.0
        """When the last message came, or the last partition was added."""

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """Note that these partitions are read from now on."""
        self._partitions = (self._partitions or set()) | set(partitions)
        if self._arguments.exit:
            self._ends |= self._consumer.end_offsets(partitions)
        self._heard_at = time.monotonic()

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Note that these partitions are not read any more."""
        self._partitions = (self._partitions or set()) - set(partitions)

    def is_done(self) -> bool:
        arguments = self._arguments
        if arguments.max_messages is not None and self._printed >= arguments.max_messages:
            return True
        if self._partitions is None:
            return False
        if arguments.exit and self._has_reached(self._partitions, self._ends):
            return True
        if arguments.idle is None or time.monotonic() - self._heard_at < arguments.idle:
            return False
        # On a busy machine there may be messages that have not come yet: idle counts only at the partitions' ends.
        return self._has_reached(self._partitions, self._consumer.end_offsets(self._partitions))

    def _has_reached(self, partitions: Collection[TopicPartition], ends: Mapping[TopicPartition, int]) -> bool:
        return all((self._consumer.position(*each) or 0) >= ends[each] for each in partitions)

    def poll(self) -> bool:
        """Print the messages that are there, and return whether there were any. Waits for POLL_S at most for one."""
        arguments = self._arguments
        left = None if arguments.max_messages is None else arguments.max_messages - self._printed
        records = self._consumer.poll(self._patience_s(), left)
        if records:
            write = self._write
            self._output.writelines([write(record) for record in records])
            self._output.flush()
            self._printed += len(records)
            self._heard_at = time.monotonic()
        # Nothing is written now that could fail: ask whether the reader of the pipe is still there.
        elif self._output_errors.poll(0):
            raise BrokenPipeError
        return bool(records)

    def _patience_s(self) -> float:
        if self._arguments.idle is None:
            return POLL_S
        left_s: float = self._heard_at + self._arguments.idle - time.monotonic()
        return min(POLL_S, max(0.0, left_s))
