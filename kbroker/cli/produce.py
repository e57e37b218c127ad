"""Write messages to a topic: lines, messages in JSON or whole files, from files or the standard input.

Each message is sent as soon as it is read.
"""

from __future__ import annotations

import argparse
import os
import select
import stat
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NoReturn

from kbroker._core.client.producer.delivery import Deliveries, Delivery
from kbroker.cli import arguments as args
from kbroker.cli.client_options import add_cluster, client_options, connect, make_client
from kbroker.cli.full_disks import full_disks_named
from kbroker.cli.message_lines import decode_line
from kbroker.cli.output import counted, print_note, prompt
from kbroker.cli.progress import Progress
from kbroker.cli.topic_facts import similar_topics
from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.config.producer import PRODUCER
from kbroker.client.errors import BrokerError
from kbroker.client.producer.producer import Producer
from kbroker.errors import ErrorCode, KbrokerError

EXAMPLES = """examples:
  echo hello | kbroker produce views
  kbroker produce views lines.txt more-lines.txt --key-separator :
  kbroker consume views --format json --from-beginning --exit | kbroker produce copy --format json
  kbroker produce pictures *.png --format file -H kind=png
  echo paid | kbroker produce orders -k customer-7 -H source=till --acks all --compression zstd
"""

READ_SIZE = 256 << 10
LARGEST_REQUEST = 256 << 20  #: so large that the broker decides which message is too large
LOOKS_EVERY_S = 0.2
LAST_WORDS_S = 1.0  #: how long messages under way are waited for after a failure
FORMATS = {
    "lines": "each line is a message; it ends with a line feed, and all before that is the message's",
    "json": "each line is a message in JSON, as consume --format json prints it",
    "file": "each file is a message",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("file", nargs="*", default=[], help="what to read (default: the standard input)")
    parser.add_argument(
        "-f",
        "--format",
        choices=FORMATS,
        default="lines",
        help="; ".join(f"{name}: {text}" for name, text in FORMATS.items()),
    )
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    parser.add_argument("-k", "--key", help="the key of every message")
    parser.add_argument("--key-separator", metavar="TEXT", help="a line is KEY TEXT VALUE")
    parser.add_argument(
        "-H", "--header", type=args.setting, action="append", default=[], metavar="NAME=VALUE", help="of every message"
    )
    parser.add_argument("-p", "--partition", type=int, default=-1, help="default: by key, as Java clients do")
    args.add_producing(parser)
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="a bar on stderr (default: where that is a terminal and the input is not)",
    )
    add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    timeout_ms = int(arguments.timeout * 1000)
    options = client_options(
        arguments,
        PRODUCER,
        acks=arguments.acks,
        compression_type=arguments.compression,
        max_request_size=LARGEST_REQUEST,
        buffer_memory=2 * LARGEST_REQUEST,
        delivery_timeout_ms=timeout_ms,
        max_block_ms=timeout_ms,
    )
    with connect(arguments) as admin:
        _say_what_is_awaited(admin, arguments.topic)
    with full_disks_named(arguments), ExitStack() as stack:
        inputs: list[BinaryIO] = [stack.enter_context(Path(name).open("rb")) for name in arguments.file] or [
            sys.stdin.buffer
        ]
        producer = stack.enter_context(make_client(Producer, options))
        progress = Progress(_size_of(inputs), _is_shown(arguments, inputs))
        sender = _Sender(producer, arguments, progress)
        try:
            for file in inputs:
                if file.isatty():
                    print_note(f"a line is a message for topic {arguments.topic!r}; Ctrl-D ends")
                sender.send_all(file)
            sender.finish()
        except BaseException:
            producer.close(LAST_WORDS_S)
            raise
    print_note(f"topic {arguments.topic!r} has {counted(progress.messages, 'message')} more")
    return 0


def _say_what_is_awaited(admin: AdminClient, topic: str) -> None:
    """Tell the user if the topic does not exist: some brokers make it, others let the command wait in vain."""
    try:
        admin.describe_topics([topic])
    except BrokerError as error:
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            advice = similar_topics(admin, [topic])
            print(f"kbroker: topic {topic!r} is not there{advice}; waiting for the broker to make it", file=sys.stderr)


def _size_of(inputs: Sequence[BinaryIO]) -> int | None:
    """Return the bytes in all inputs; None if one of them is not a regular file."""
    found = [os.fstat(file.fileno()) for file in inputs]
    return sum(each.st_size for each in found) if all(stat.S_ISREG(each.st_mode) for each in found) else None


def _is_shown(arguments: argparse.Namespace, inputs: Sequence[BinaryIO]) -> bool:
    if arguments.progress is not None:
        return bool(arguments.progress)
    return sys.stderr.isatty() and not any(file.isatty() for file in inputs)


class _Sender:
    """Sends messages to one topic. Its methods raise the error of an earlier message as soon as it is known."""

    def __init__(self, producer: Producer, arguments: argparse.Namespace, progress: Progress):
        self._producer = producer
        self._arguments = arguments
        self._progress = progress
        self._topic: str = arguments.topic
        self._headers = [(name, text.encode()) for name, text in arguments.header] or None
        self._partition: int | None = arguments.partition if arguments.partition >= 0 else None
        self._key: bytes | None = arguments.key.encode() if arguments.key is not None else None
        self._under_way: deque[Delivery | Deliveries] = deque()
        self._line_number = 0

    def send_all(self, file: BinaryIO) -> None:
        """Send all messages of a file."""
        if self._arguments.format == "file":
            data = file.read()
            self._send_values([data])
            self._progress.add_bytes(len(data))
            return
        send = self._send_json if self._arguments.format == "json" else self._send_lines
        self._line_number = 0
        for lines in self._portions(file):
            send(lines)

    def finish(self) -> None:
        """Wait until every message is acknowledged."""
        while self._under_way:
            self._under_way.popleft().result()
        self._progress.finish()

    def _portions(self, file: BinaryIO) -> Iterator[list[bytes]]:
        """Yield the lines of a file, as many as are there at once.

        While no line comes, earlier messages are checked for errors.
        """
        rest = b""
        while True:
            if file.isatty():
                prompt()
            while self._under_way and not select.select([file], [], [], LOOKS_EVERY_S)[0]:
                self._look()
            data = os.read(file.fileno(), READ_SIZE)
            if not data:
                if file.isatty():
                    print_note("")
                break
            *lines, rest = (rest + data).split(b"\n")
            if lines:
                yield lines
            self._look()
            self._progress.add_bytes(len(data))
        if rest:
            yield [rest]

    def _look(self) -> None:
        while self._under_way and self._under_way[0].done():
            self._under_way.popleft().result()

    def _send_lines(self, lines: list[bytes]) -> None:
        if not self._arguments.key_separator:
            self._send_values(lines)
            return
        separator = self._arguments.key_separator.encode()
        parts = [line.partition(separator) for line in lines]
        good = next((at for at, (_, found, _) in enumerate(parts) if not found), len(parts))
        self._line_number += good
        if good:
            self._send_values([value for _, _, value in parts[:good]], [key for key, _, _ in parts[:good]])
        if good < len(parts):
            self._refuse(f"line {self._line_number + 1} of the input has no {self._arguments.key_separator!r}")

    def _refuse(self, what: str) -> NoReturn:
        """Refuse a line of the input, after the lines before it were delivered. Raises KbrokerError."""
        self.finish()
        before = counted(self._progress.messages, "message")
        raise KbrokerError(f"{what}; {before} before it {'is' if self._progress.messages == 1 else 'are'} delivered")

    def _send_values(self, values: list[bytes], keys: list[bytes] | None = None) -> None:
        if keys is None and self._key is not None:
            keys = [self._key] * len(values)
        self._under_way.append(
            self._producer.send_many(self._topic, values, keys, headers=self._headers, partitions=self._partition)
        )
        self._progress.add_messages(len(values))

    def _send_json(self, lines: list[bytes]) -> None:
        for line in lines:
            self._line_number += 1
            try:
                message = decode_line(line, self._line_number)
            except KbrokerError as error:
                self._refuse(str(error))
            partition = message.partition_id if self._partition is None else self._partition
            self._under_way.append(
                self._producer.send(
                    self._topic,
                    message.value,
                    message.key,
                    message.headers,
                    partition if partition >= 0 else None,
                    message.timestamp if message.timestamp >= 0 else None,
                )
            )
            self._progress.add_messages(1)
