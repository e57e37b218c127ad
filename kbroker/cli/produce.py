"""Write messages from the standard input to a topic, one a line.

Each line is sent as soon as it is read; what a pipe or file delivers at once travels in one batch per partition.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Iterator

from kbroker.cli import arguments as args
from kbroker.cli.message_lines import Message, decode_line
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.net.blocking_client import BlockingClient, raise_for
from kbroker.protocol import messages as M
from kbroker.protocol.compression import CODECS
from kbroker.protocol.records import BatchBuilder

EXAMPLES = """examples:
  echo hello | kbroker produce views
  kbroker produce views --key-separator : < lines.txt
  kbroker consume views --json --from-beginning --exit | kbroker produce copy --json
  echo paid | kbroker produce orders -k customer-7 -H source=till --acks all --compression zstd
"""

READ_SIZE = 256 << 10
BATCH_SIZE = 512 << 10
ACKS = {"0": 0, "1": 1, "all": -1}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("-k", "--key", help="the key of every message")
    parser.add_argument("--key-separator", metavar="TEXT", help="a line is KEY TEXT VALUE")
    parser.add_argument(
        "-H", "--header", type=args.setting, action="append", default=[], metavar="NAME=VALUE", help="of every message"
    )
    parser.add_argument("-p", "--partition", type=int, default=-1, help="default: by key, as Java clients do")
    parser.add_argument("--json", action="store_true", help="a line is a message in JSON, as consume --json prints it")
    parser.add_argument("--acks", choices=ACKS, default="all", help="default: %(default)s")
    parser.add_argument("--compression", choices=CODECS, default="none", help="default: %(default)s")
    args.add_bootstrap(parser)


def run(arguments: argparse.Namespace) -> int:
    with args.connect(arguments) as client:
        producer = _Producer(client, arguments)
        number = 0
        for lines in _read_lines():
            messages = []
            for line in lines:
                number += 1
                messages.append(_message(arguments, line, number))
            producer.send(messages)
    return 0


def _read_lines() -> Iterator[list[bytes]]:
    """The lines of the standard input, in the portions in which it delivers them."""
    rest = b""
    descriptor = sys.stdin.fileno()
    while data := os.read(descriptor, READ_SIZE):
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _message(arguments: argparse.Namespace, line: bytes, number: int) -> Message:
    if arguments.json:
        message = decode_line(line, number)
        return message if arguments.partition < 0 else message._replace(partition_id=arguments.partition)
    key, value = arguments.key.encode() if arguments.key is not None else None, line.removesuffix(b"\r")
    if arguments.key_separator:
        before, separator, after = value.partition(arguments.key_separator.encode())
        if not separator:
            raise KbrokerError(f"line {number} of the input has no {arguments.key_separator!r}")
        key, value = before, after
    headers = [(name, text.encode()) for name, text in arguments.header]
    return Message(key, value, headers, partition_id=arguments.partition)


class _Producer:
    """Sends messages to the leaders of one topic, waiting for each answer."""

    def __init__(self, client: BlockingClient, arguments: argparse.Namespace):
        self._client = client
        self._topic: str = arguments.topic
        self._acks = ACKS[arguments.acks]
        self._codec = CODECS[arguments.compression]
        self._timeout_ms = int(arguments.timeout * 1000)
        self._leaders = client.leaders(self._topic, allow_auto_creation=True)
        self._partitions = sorted(self._leaders)
        self._turn = random.randrange(len(self._partitions))

    def send(self, messages: list[Message]) -> None:
        """All of `messages`, in order within each partition. Those without a key go to one partition, in turn."""
        self._turn += 1
        now_ms = time.time_ns() // 1_000_000
        builders: dict[int, BatchBuilder] = {}
        for message in messages:
            partition_id = self._partition_of(message)
            builder = builders.get(partition_id)
            if builder is None:
                builder = builders[partition_id] = BatchBuilder(codec=self._codec)
            timestamp = message.timestamp if message.timestamp >= 0 else now_ms
            if builder.append(timestamp, message.key, message.value, message.headers) >= BATCH_SIZE:
                self._send_batch(partition_id, builders.pop(partition_id).build())
        for partition_id, builder in builders.items():
            self._send_batch(partition_id, builder.build())

    def _partition_of(self, message: Message) -> int:
        if message.partition_id >= 0:
            args.require_known_partitions(self._topic, [message.partition_id], self._partitions)
            return message.partition_id
        if message.key is None:
            return self._partitions[self._turn % len(self._partitions)]
        return self._partitions[(murmur2(message.key) & 0x7FFFFFFF) % len(self._partitions)]

    def _send_batch(self, partition_id: int, batch: bytes) -> None:
        request = M.ProduceRequest
        data = request.PartitionProduceData(index=partition_id, records=batch)
        message = request(
            acks=self._acks,
            timeout_ms=self._timeout_ms,
            topic_data=[request.TopicProduceData(name=self._topic, partition_data=[data])],
        )

        def attempt() -> None:
            if self._acks == 0:
                self._client.connection(self._leaders[partition_id]).send_only(message)
                return
            answer = self._client.call(message, self._leaders[partition_id])
            for topic in answer.responses:
                for partition in topic.partition_responses:
                    if partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                        self._leaders = self._client.leaders(self._topic)
                    raise_for(partition.error_code, partition.error_message, f"{self._topic}-{partition_id}")

        self._client.retried(attempt)


def murmur2(data: bytes) -> int:
    """The 32-bit hash by which Java clients choose a key's partition."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    value = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        value = (value * m & mask) ^ k
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * m & mask
    value = (value ^ value >> 13) * m & mask
    return value ^ value >> 15
