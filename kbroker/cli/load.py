"""Load topics into a lake of Parquet files, each record once; needs Spark: pip install pyspark pyarrow.

Files are LAKE/topic=T/date=YYYY-MM-DD/hour=HH/part-PARTITION-FIRST-LAST.parquet. After a load that fails or is killed,
run the same command again.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from kbroker.cli import arguments as args
from kbroker.cli.client_options import add_cluster, client_options, connect
from kbroker.cli.load_every import run_every
from kbroker.cli.outcome import FAILED, USAGE
from kbroker.cli.output import print_json, print_table
from kbroker.cli.progress import Progress, in_units
from kbroker.cli.topic_facts import missing_topics_named
from kbroker.client.config.consumer import CONSUMER
from kbroker.client.config.producer import PRODUCER
from kbroker.client.errors import BrokerError
from kbroker.client.producer.audit import AUDIT_TOPIC
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from kbroker.spark.installed import check_installed
from kbroker.spark.loader.commits.commit import Commit
from kbroker.spark.loader.plans.plan import Plan
from kbroker.spark.loader.run import Loader, Watcher
from kbroker.spark.loader.settings import ARRIVAL, CONTINUE, EVENT, FAIL, Settings
from kbroker.spark.loader.summary import Preview, Summary
from kbroker.spark.loader.tasks.spark_tasks import SparkTasks
from kbroker.spark.loader.verification.verify import Verification, verify
from kbroker.spark.options.format_options import duration_ms
from kbroker.spark.options.kafka_options import ISOLATION, READ_COMMITTED, REFUSED
from kbroker.spark.session import loading_session

EXAMPLES = """examples:
  kbroker load views clicks --to lake               what is new, into ./lake
  kbroker load --pattern 'views.*' --to lake --group loader
  kbroker load views --to lake --every 60           and again each minute, until Ctrl-C
  kbroker load views --to lake --dry-run            what it would read
  kbroker load views --to lake --reload-since 2026-01-31T12:00:00
  kbroker load --to lake --verify --audit
  kbroker load views --to 's3://bucket/lake?region=eu-west-1' --master spark://host:7077
"""

CUT_OFF = "the load before was cut off; its files have their names now"

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="*")
    parser.add_argument("--pattern", type=_pattern, metavar="REGEX", help="topics whose whole names match it")
    parser.add_argument(
        "--to",
        required=True,
        metavar="LAKE",
        help="a directory that all executors of Spark reach at the same path, or s3://, gs://, hdfs://",
    )
    parser.add_argument(
        "--time",
        choices=(EVENT, ARRIVAL),
        default=EVENT,
        help="a record is in the hour of its timestamp, or of the load; of a lake for good (default: %(default)s)",
    )
    parser.add_argument(
        "--from",
        type=_beginning,
        default=EARLIEST_TIMESTAMP,
        dest="start",
        metavar="WHERE",
        help="where topics begin that were not loaded before: earliest (default), latest, or a time",
    )
    parser.add_argument(
        "--reload-since",
        type=args.moment,
        metavar="TIME",
        help="read again what is that late or later, in place of what the lake has; somewhat earlier records too, "
        "for files are replaced whole",
    )
    parser.add_argument(
        "--data-loss",
        choices=(FAIL, CONTINUE),
        default=FAIL,
        help="when brokers have deleted what was to be read next, or a topic was made again (default: %(default)s)",
    )
    parser.add_argument(
        "--committed",
        action="store_true",
        help="no records of transactions that are open or aborted; of a lake for good, and --verify knows",
    )
    parser.add_argument(
        "--value-format",
        choices=("string", "json", "avro"),
        help="values become typed columns; what cannot be decoded goes to LAKE/_quarantine, with the reason",
    )
    parser.add_argument(
        "--value-schema", metavar="SCHEMA", help="of JSON in Spark's words, as in 'id LONG'; of Avro its own"
    )
    parser.add_argument("--schema-registry", metavar="URL", help="of Avro in Confluent's framing")
    parser.add_argument(
        "--compression", choices=args.CODECS, default="zstd", help="of the files (default: %(default)s)"
    )
    parser.add_argument(
        "--avro-framing",
        choices=("confluent", "none"),
        help="what stands before an Avro value: a zero byte and its schema's id (confluent, the default), or nothing",
    )
    parser.add_argument("--no-headers", action="store_true", help="leave the column headers out")
    parser.add_argument(
        "--lateness",
        type=_duration,
        default="10m",
        metavar="TIME",
        help="an hour is marked complete (_SUCCESS) when each partition has a record that is so much later, or was "
        "read to its end so much later (default: %(default)s)",
    )
    parser.add_argument("-g", "--group", help="commit offsets to this group too, for tools that show lag")
    parser.add_argument(
        "--audit",
        nargs="?",
        const=AUDIT_TOPIC,
        metavar="TOPIC",
        help="write what was loaded to this topic (default: %(const)s); with --verify: compare with what is there",
    )
    parser.add_argument(
        "--task-bytes",
        type=_size,
        default="256M",
        metavar="SIZE",
        help="the most one task reads (default: %(default)s)",
    )
    parser.add_argument(
        "--commit-bytes",
        type=_size,
        default="64G",
        metavar="SIZE",
        help="a load of more than that is several commits (default: %(default)s)",
    )
    parser.add_argument("--master", default="local[*]", help="Spark's (default: %(default)s)")
    parser.add_argument(
        "--conf", type=args.setting, action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark"
    )
    parser.add_argument(
        "--every",
        type=_interval,
        metavar="TIME",
        help="load again and again, with one session of Spark, each load so long after the one before began, or at "
        "once if that took longer. Ctrl-C and SIGTERM end it with 0: what is not committed by then is left to the next "
        "load. A load that fails is told of on stderr, and the next one tries again; it ends with 1 when the first "
        "fails, when Spark itself has ended, when records are lost, or when the lake is damaged",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="say what would be read, and do nothing")
    what.add_argument(
        "--verify",
        action="store_true",
        help="compare brokers, lake and audit hour by hour, and do nothing; without topics: all that the lake has",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, no summary")
    args.add_json(parser)
    add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    is_named = bool(arguments.topic) + (arguments.pattern is not None)
    if is_named > 1 or (is_named == 0 and not arguments.verify):
        print("kbroker load: name topics, or a --pattern", file=sys.stderr)
        return USAGE
    check_installed()
    if arguments.every is not None and (arguments.verify or arguments.dry_run):
        print("kbroker load: --every is for loads", file=sys.stderr)
        return USAGE
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left behind
    try:
        return _run(arguments)
    except BrokerError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        with connect(arguments) as admin, missing_topics_named(admin, arguments.topic):
            raise error


def _run(arguments: argparse.Namespace) -> int:
    watcher = _Progress(shown=sys.stderr.isatty() and not arguments.quiet)
    settings, tasks = (
        _settings(arguments),
        SparkTasks(lambda: loading_session(arguments.master, **dict(arguments.conf))),
    )
    if arguments.verify:
        found = verify(settings, tasks)
        _print_verification(found, as_json=arguments.json)
        return 0 if found.is_good else FAILED
    loader = Loader(settings, tasks, watcher)
    if arguments.dry_run:
        _print_preview(loader.preview(), as_json=arguments.json)
        return 0
    if arguments.every is not None:
        return run_every(loader.run, partial(_print_load, arguments), arguments.every / 1000)
    summary = loader.run()
    if arguments.json:
        print_json(asdict(summary))
    elif not arguments.quiet:
        _print_summary(summary)
    return 0


def _settings(arguments: argparse.Namespace) -> Settings:
    given = client_options(arguments, PRODUCER | CONSUMER)
    client = {name: value for name, value in given.items() if name not in REFUSED and name != "group.id"}
    if arguments.committed:
        client[ISOLATION] = READ_COMMITTED
    return Settings(
        lake=arguments.to if "://" in arguments.to else str(Path(arguments.to).absolute()),
        client=client,
        topics=tuple(arguments.topic),
        pattern=arguments.pattern,
        time=arguments.time,
        start=arguments.start,
        reload_since_ms=arguments.reload_since,
        data_loss=arguments.data_loss,
        headers=not arguments.no_headers,
        compression=arguments.compression,
        task_bytes=arguments.task_bytes,
        commit_bytes=arguments.commit_bytes,
        lateness_ms=arguments.lateness,
        group=arguments.group,
        audit_topic=arguments.audit,
        formats=_formats(arguments),
    )


def _formats(arguments: argparse.Namespace) -> dict[str, str]:
    given = {
        "valueFormat": arguments.value_format,
        "valueSchema": arguments.value_schema,
        "schemaRegistry": arguments.schema_registry,
        "avroFraming": arguments.avro_framing,
    }
    found = {name: value for name, value in given.items() if value is not None}
    if found and "valueFormat" not in found:
        raise KbrokerError("--value-format is missing: string, json or avro")
    return found


class _Progress(Watcher):
    """Shows a progress line for each round of a load."""

    def __init__(self, shown: bool):
        self._shown = shown
        self._progress: Progress | None = None

    def planned(self, plan: Plan) -> None:
        self._progress = Progress(plan.size, self._shown)

    def progressed(self, rows: int, size: int) -> None:
        if self._progress is not None:
            self._progress.add_messages(rows)
            self._progress.add_bytes(size)

    def committed(self, commit: Commit) -> None:
        if self._progress is not None:
            self._progress.finish()


def _print_summary(summary: Summary) -> None:
    for each in summary.lost:
        print(f"kbroker: {each}", file=sys.stderr)
    if summary.was_cut_off:
        print(CUT_OFF)
    if not summary.commits:
        print("nothing new")
        return
    print_table(
        ("topic", "partitions", "rows", "undecodable", "no record", "hours", "complete", "files", "size"),
        [
            (
                each.topic,
                each.partitions,
                each.rows,
                each.undecodable,
                each.missing,
                each.hours,
                each.complete_hours,
                each.files,
                in_units(each.size),
            )
            for each in summary.topics
        ],
    )
    print(_line(summary))


def _print_load(arguments: argparse.Namespace, summary: Summary) -> None:
    """Print a line about one of many loads, if it has done something."""
    for each in summary.lost:
        print(f"kbroker: {each}", file=sys.stderr)
    if not (summary.commits or summary.was_cut_off):
        return
    if arguments.json:
        print(json.dumps(asdict(summary)), flush=True)
    if arguments.json or arguments.quiet:
        return
    at = time.strftime("%H:%M:%S")
    if summary.was_cut_off:
        print(f"{at} {CUT_OFF}", flush=True)
    if summary.commits:
        print(f"{at} {_line(summary)}", flush=True)


def _line(summary: Summary) -> str:
    rate = summary.rows / max(summary.seconds, 1e-6)
    numbers = ", ".join(map(str, summary.commits))
    done = f"commit {numbers}: {summary.rows:,} rows in {summary.seconds:.1f} s, {rate:,.0f} rows/s"
    if complete := sum(each.complete_hours for each in summary.topics):
        done += f"; {complete} hours are complete"
    return done


def _print_preview(found: Preview | None, *, as_json: bool) -> None:
    if as_json:
        print_json(None if found is None else asdict(found))
        return
    if found is None:
        print("nothing new")
        return
    for each in found.lost:
        print(f"kbroker: {each}", file=sys.stderr)
    print_table(("topic", "offsets"), found.offsets.items())
    print(f"commit {found.number}: about {in_units(found.size)} on the brokers, {found.tasks} tasks")
    if found.removed:
        print(f"{len(found.removed)} files would be replaced")


def _print_verification(found: Verification, *, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(found), "is_good": found.is_good})
        return
    tiers = sorted({tier for each in found.hours for tier in each.audit})
    print_table(
        ("topic", "hour", "broker", "lake", "lake in all", *(f"audit: {tier}" for tier in tiers), ""),
        [
            (
                each.topic,
                each.hour,
                each.broker,
                each.lake,
                each.lake_in_all,
                *(each.audit.get(tier) for tier in tiers),
                each.verdict,
            )
            for each in found.hours
        ],
    )
    for problem in found.problems:
        print(f"kbroker: {problem}", file=sys.stderr)
    print("all is there" if found.is_good else "NOT all is there")


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def _beginning(text: str) -> int:
    words = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}
    return words[text] if text in words else args.moment(text)


def _duration(text: str) -> int:
    """Parse a duration and return it in ms; a plain number is seconds. Raises ArgumentTypeError."""
    try:
        return duration_ms(f"{text}s" if text.isascii() and text.isdigit() else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None


def _interval(text: str) -> int:
    """Parse a duration that is not 0, and return it in ms. Raises ArgumentTypeError."""
    if (found := _duration(text)) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time between loads")
    return found


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:I?B)?", text.upper(), re.ASCII)
    if found is None or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size like 256M")
    return int(found[1]) * UNITS[found[2]]
