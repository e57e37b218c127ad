"""Measure a broker, any that speaks Kafka's protocol: throughput, latency, what the client needs for it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from kbroker.cli import arguments as args
from kbroker.cli import perf_consume, perf_latency, perf_produce
from kbroker.cli.client_options import add_cluster, connect
from kbroker.cli.full_disks import full_disks_named
from kbroker.cli.outcome import INTERRUPTED
from kbroker.cli.perf_payload import DEFAULT_SIZE
from kbroker.cli.perf_report import Finding, report
from kbroker.cli.topic_facts import described
from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.admin.results import TopicDescription
from kbroker.client.errors import BrokerError
from kbroker.errors import ErrorCode, KbrokerError

EXAMPLES = """examples:
  kbroker perf produce load --partitions 6                       as fast as it goes, for ten seconds
  kbroker perf produce load --size 1000 --rate 20000 --seconds 60 --acks all --json
  kbroker perf produce load --payload lines.txt --compression zstd --messages 1000000 -X linger.ms=5
  kbroker perf consume load                                      what is there, once
  kbroker perf consume load --read arrow --messages 5000000 -b broker.example.org:9092
  kbroker perf latency load --messages 10000                     one message at a time
  kbroker perf latency load --end-to-end --rate 100 --seconds 30

How it is measured: before the clock runs there is a warm-up with the same load, whose messages are waited for and not
counted. The clock stops when the last message is acknowledged, or read. Every message is in the percentiles, which are
exact to 1%: 99% of the messages did not exceed p99. With --rate a message's latency begins when it was due, even if
what came before has held it up, so that a broker that stalls is seen to stall (no coordinated omission). Bytes are
those of the messages' values, and MB are millions of them. CPU is all that this process has needed, user and system,
its background threads too. Ctrl-C ends a load: what was acknowledged or read by then is told.

kafka-producer-perf-test counts otherwise: its clock runs from its own start on, its MB are 1,048,576 bytes, at a
--throughput a record's latency begins when it is sent, however late that is, and percentiles are of a sample.
"""

SECONDS = 10.0
LARGEST_SIZE = 1 << 28
WARM_UP_S = 1.0


def configure(parser: argparse.ArgumentParser) -> None:
    loads = parser.add_subparsers(dest="load", metavar="LOAD", required=True)
    producing = loads.add_parser("produce", help="write messages, as many as go through or at a rate")
    consuming = loads.add_parser("consume", help="read what is in a topic now, from its beginning")
    latency = loads.add_parser("latency", help="write one message at a time, and wait for it")
    for each in (producing, consuming, latency):
        each.add_argument("topic")
        each.add_argument("-n", "--messages", type=args.positive, metavar="N", help="stop after N messages")
    for each in (producing, latency):
        each.add_argument(
            "--seconds",
            type=args.positive_seconds,
            metavar="S",
            help=f"stop sending after so long (default: {SECONDS:g}, or when --messages are sent)",
        )
        payload = each.add_mutually_exclusive_group()
        payload.add_argument(
            "-s",
            "--size",
            type=_size,
            metavar="BYTES",
            help=f"of each message: random letters, which codecs make 40%% smaller (default: {DEFAULT_SIZE})",
        )
        payload.add_argument("--payload", metavar="FILE", help="messages are its lines, round and round")
        each.add_argument(
            "-r", "--rate", type=args.positive_seconds, metavar="N", help="messages per second (default: no limit)"
        )
        args.add_producing(each)
        each.add_argument(
            "-p", "--partitions", type=args.positive, metavar="N", help="make the topic with so many if it is not there"
        )
        each.add_argument(
            "--replication-factor", type=args.positive, default=-1, metavar="N", help="of a topic that is made"
        )
    producing.add_argument(
        "--producers", type=args.positive, default=1, metavar="N", help="clients, each with connections of its own"
    )
    latency.add_argument(
        "--end-to-end", action="store_true", help="until a consumer has the message, not until it is acknowledged"
    )
    consuming.add_argument("--seconds", type=args.positive_seconds, metavar="S", help="stop after so long")
    consuming.add_argument(
        "--read",
        choices=perf_consume.WAYS,
        default="records",
        help="records: the value of each, in Python; arrow: all columns, by pyarrow (default: %(default)s)",
    )
    consuming.add_argument(
        "--committed", action="store_true", help="no messages of transactions that are open or aborted"
    )
    for each in (producing, consuming, latency):
        each.add_argument(
            "--warm-up",
            type=_seconds,
            default=WARM_UP_S,
            metavar="SECONDS",
            help="of the same load before, a tenth of its messages at most; 0: none (default: %(default)g)",
        )
        each.add_argument(
            "--progress",
            action=argparse.BooleanOptionalAction,
            default=None,
            help="a bar on stderr (default: where that is a terminal)",
        )
        args.add_json(each)
        add_cluster(each)


def _size(text: str) -> int:
    value = args.number(text, int)
    if not 0 <= value <= LARGEST_SIZE:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to {LARGEST_SIZE}")
    return value


def _seconds(text: str) -> float:
    return 0.0 if args.number(text, float) == 0 else args.positive_seconds(text)


def run(arguments: argparse.Namespace) -> int:
    if arguments.load != "consume" and arguments.messages is None and arguments.seconds is None:
        arguments.seconds = SECONDS
    with connect(arguments) as admin:
        partitions = [each.partition for each in _topic(admin, arguments).partitions]
    shown = sys.stderr.isatty() if arguments.progress is None else arguments.progress
    loads: dict[str, Callable[[argparse.Namespace, Sequence[int], bool], Finding]] = {
        "produce": perf_produce.measure,
        "consume": perf_consume.measure,
        "latency": perf_latency.measure,
    }
    with full_disks_named(arguments):
        finding = loads[arguments.load](arguments, partitions, shown)
    told = {"produce": perf_produce.latency_of, "latency": perf_latency.latency_of}.get(arguments.load)
    report(finding, arguments, told(arguments) if told is not None else "")
    return INTERRUPTED if finding.interrupted else 0


def _topic(admin: AdminClient, arguments: argparse.Namespace) -> TopicDescription:
    """Return the topic; make it if it is missing and `--partitions` is given.

    Raises KbrokerError if it is missing without `--partitions`, or has another number of partitions.
    """
    name: str = arguments.topic
    wanted: int | None = getattr(arguments, "partitions", None)
    if wanted is None:
        try:
            return described(admin, [name])[name]
        except KbrokerError as error:
            if not hasattr(arguments, "partitions"):
                raise
            raise KbrokerError(f"{error}; --partitions N makes a topic") from None
    try:
        found = admin.describe_topics([name])[name]
    except BrokerError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        admin.create_topic(name, wanted, arguments.replication_factor)
        found = admin.describe_topics([name])[name]
    if len(found.partitions) != wanted:
        raise KbrokerError(f"topic {name!r} has {len(found.partitions)} partitions, not {wanted}")
    return found
