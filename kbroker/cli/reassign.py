"""Move replicas to other brokers: plan it when brokers come or go, carry it out, watch it, cancel it.

A plan is a file in the format of Kafka's kafka-reassign-partitions, which takes it too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, TypeVar

from kbroker.cli import arguments as args
from kbroker.cli.client_options import add_cluster, connect
from kbroker.cli.output import counted, print_json, print_note, print_table, remind_of_execute
from kbroker.cli.progress import in_units
from kbroker.cli.replication_throttle import lift_throttle, set_throttle
from kbroker.cli.replication_warnings import lines_of, min_in_sync_of, print_warnings, replication_warnings
from kbroker.cli.topic_facts import (
    Chosen,
    ReplicaSizes,
    chosen_partitions,
    described,
    replica_sizes,
    replicas_at_the_end,
    topic_partitions,
    without_missing,
)
from kbroker.cli.watch import looks
from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.admin.items import numbers_by_topic
from kbroker.client.admin.results import Reassignment, TopicDescription, TopicPartitionReplica
from kbroker.client.errors import BrokerError, ClientError, PartialFailure
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.model import TopicPartition
from kbroker.rules.min_in_sync import move_warning
from kbroker.rules.rebalance import Move, Placed, plan_moves

T = TypeVar("T")

EXAMPLES = """examples:
  kbroker reassign plan                              brokers have come: every broker gets its share
  kbroker reassign plan --without 3 --execute        broker 3 is to go
  kbroker reassign plan views --replication-factor 3 --output plan.json
  kbroker reassign execute plan.json --throttle 50   at most 50 MB/s on each broker
  kbroker reassign status --watch
  kbroker reassign cancel
"""
MEGABYTE = 1_000_000
ANY = "any"
"""What a plan has in place of a log directory where the broker may choose."""
ASK_AGAIN_S = 0.1
"""The pause before a broker is asked again for the log directory of a replica that it does not have yet."""
NOT_YET = (ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""What a broker says that does not have the replica, and one that has not heard of the partition."""


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    planning = actions.add_parser("plan", help="show which replicas would move; with --execute begin to move them")
    planning.add_argument(
        "topic", nargs="*", type=topic_partitions, metavar="TOPIC[:PARTITIONS]", help="default: all, internal ones too"
    )
    planning.add_argument("--on", type=_ids, metavar="IDS", help="brokers that may have replicas (default: all)")
    planning.add_argument("--without", type=_ids, default=[], metavar="IDS", help="brokers that are to have none")
    planning.add_argument("--replication-factor", type=args.positive, metavar="N", help="default: as it is")
    planning.add_argument("--output", type=Path, metavar="FILE", help="write the plan to a file, for `execute`")
    executing = actions.add_parser("execute", help="begin to move replicas as a file says")
    executing.add_argument("plan", type=Path, metavar="FILE", help="the file; - for the standard input")
    for action in (planning, executing):
        action.add_argument(
            "--throttle", type=args.positive_seconds, metavar="MB/S",
            help="copy at most so many MB a second from and to each broker; `status` lifts it at the end, `cancel` too",
        )  # fmt: skip
    status = actions.add_parser("status", help="what is moving, and how much of it is left; 1 while something moves")
    status.add_argument("--watch", action="store_true", help="until nothing moves any more")
    cancelling = actions.add_parser("cancel", help="stop moves that are under way; replicas stay where they were")
    cancelling.add_argument(
        "topic", nargs="*", type=topic_partitions, metavar="TOPIC[:PARTITIONS]", help="default: all"
    )
    for action in (status, cancelling):
        action.add_argument(
            "--preserve-throttles", action="store_true", help="leave the throttle on, also when nothing moves any more"
        )
    args.add_execution(planning)
    for action in (planning, executing, status, cancelling):
        add_cluster(action)
        args.add_json(action)


def _ids(text: str) -> list[int]:
    return args.partition_list(text)


def run(arguments: argparse.Namespace) -> int:
    actions = {"plan": _plan, "execute": _execute, "status": _status, "cancel": _cancel}
    with connect(arguments) as admin:
        return actions[arguments.action](admin, arguments)


# --- plan and execute -------------------------------------------------------------------------------------------------


def _plan(admin: AdminClient, arguments: argparse.Namespace) -> int:
    registered = {broker.node_id: broker.rack for broker in admin.describe_cluster().brokers}
    racks = _allowed_racks(registered, arguments.on, arguments.without)
    placed = _placed(admin, arguments.topic)
    if arguments.on is None:
        _check_all_there(placed, registered, arguments.without)
    moves = plan_moves(placed, racks, replication_factor=arguments.replication_factor)
    plan = {move.placed.partition: move.replicas for move in moves}
    if arguments.output is not None:
        arguments.output.write_text(_encoded(plan) + "\n")
    if arguments.json:
        print_json([_as_dict(move) for move in moves])
    else:
        _print_plan(moves)
    _warn_of_few_replicas(admin, moves, len(registered))
    if arguments.execute:
        _begin(admin, plan, arguments.throttle)
    elif moves and not arguments.dry_run and arguments.output is None:
        remind_of_execute()
    return 0


def _warn_of_few_replicas(admin: AdminClient, moves: Sequence[Move], brokers: int) -> None:
    """Print warnings about topics that get another number of replicas, and about moves that stop acks=all."""
    min_in_sync = min_in_sync_of(admin, {move.placed.partition.topic for move in moves})
    replicas = [
        (move.placed.partition.topic, len(move.replicas))
        for move in moves
        if len(move.replicas) != len(move.placed.replicas)
    ]
    print_warnings(replication_warnings(replicas, min_in_sync, brokers))
    print_warnings(
        lines_of(
            (topic, move_warning(now, now + len(move.added), min_in_sync[topic]))
            for move in moves
            for topic, now in [(move.placed.partition.topic, len(move.placed.replicas))]
            if topic in min_in_sync
        )
    )


def _allowed_racks(
    there: Mapping[int, str | None], on: Sequence[int] | None, without: Sequence[int]
) -> dict[int, str | None]:
    unknown = sorted(set(on or ()) - there.keys())
    if unknown:
        raise KbrokerError(
            f"--on: broker {unknown[0]} is not in the cluster; it has {', '.join(map(str, sorted(there)))}"
        )
    allowed = {each: rack for each, rack in there.items() if (on is None or each in on) and each not in without}
    if not allowed:
        raise KbrokerError("no broker is left that may have replicas")
    return allowed


def _check_all_there(placed: Iterable[Placed], there: Collection[int], without: Collection[int]) -> None:
    """Raise KbrokerError if a broker that is away has replicas: the plan would take all of them from it."""
    away = sorted({each for at in placed for each in at.replicas} - set(there) - set(without))
    if away:
        raise KbrokerError(
            f"broker {away[0]} has replicas and is not in the cluster now: start it again, or give --without {away[0]} "
            "if it is not to come back"
        )


def _placed(admin: AdminClient, chosen: Sequence[Chosen]) -> list[Placed]:
    """The chosen partitions with their replicas and sizes. The size is that of the largest replica.

    A partition that moves has the replicas of the end of its move.
    """
    moving = _moves_under_way(admin)  # before the replicas: a move that ends between the two is found at its end
    names = list(dict.fromkeys(name for name, _ in chosen))
    topics: Mapping[str, TopicDescription]
    if names:
        topics = described(admin, names)
    else:
        topics = without_missing(lambda: admin.describe_topics(admin.list_topics(internal=True)))
    wanted = set(chosen_partitions(admin, chosen)) if chosen else None
    told = replica_sizes(admin)
    _note_untold(told)
    sizes: dict[TopicPartition, int] = {}
    for (_, at), size in told.sizes.items():
        sizes[at] = max(size, sizes.get(at, 0))
    return [
        Placed(at, replicas_at_the_end(each.replicas, moving.get(at)), sizes.get(at, 0))
        for topic in topics.values()
        for each in topic.partitions
        for at in [TopicPartition(topic.name, each.partition)]
        if wanted is None or at in wanted
    ]


def _moves_under_way(admin: AdminClient) -> Mapping[TopicPartition, Reassignment]:
    """Return the partitions whose replicas move. A controller before Kafka 2.4 cannot tell them: there are none."""
    try:
        return admin.list_partition_reassignments()
    except BrokerError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        return {}


def _note_untold(told: ReplicaSizes) -> None:
    """Say which brokers do not tell the sizes of their replicas, if there are any."""
    if told.errors:
        why = "; ".join(dict.fromkeys(error.message for error in told.errors.values()))
        print(
            f"kbroker: replicas whose sizes are not told count as the others of their partition: {why}",
            file=sys.stderr,
            flush=True,
        )


def _print_plan(moves: Sequence[Move]) -> None:
    if not moves:
        print("nothing has to move")
        return
    print_table(
        ["partition", "replicas", "new replicas", "to copy"],
        [
            [
                str(move.placed.partition),
                _words(move.placed.replicas),
                _words(move.replicas),
                in_units(move.copied_bytes),
            ]
            for move in moves
        ],
    )
    total = sum(move.copied_bytes for move in moves)
    print(f"{counted(len(moves), 'partition')}, {in_units(total)} to copy")


def _as_dict(move: Move) -> dict[str, Any]:
    return {
        "topic": move.placed.partition.topic,
        "partition": move.placed.partition.partition_id,
        "replicas": list(move.placed.replicas),
        "new_replicas": list(move.replicas),
        "bytes_to_copy": move.copied_bytes,
    }


def _execute(admin: AdminClient, arguments: argparse.Namespace) -> int:
    name = str(arguments.plan)
    plan = _decoded(name, sys.stdin.read() if name == "-" else arguments.plan.read_text())
    chosen_partitions(admin, [*numbers_by_topic(plan.replicas).items()])
    _begin(admin, plan.replicas, arguments.throttle)
    _choose_directories(admin, plan.directories, arguments.timeout)
    if arguments.json:
        rows = plan.replicas.items()
        print_json([{"topic": at.topic, "partition": at.partition_id, "new_replicas": ids} for at, ids in rows])
    return 0


def _begin(admin: AdminClient, plan: Mapping[TopicPartition, Sequence[int]], megabytes: float | None) -> None:
    if not plan:
        return
    try:
        if megabytes is not None:
            set_throttle(admin, plan, int(megabytes * MEGABYTE))
        admin.alter_partition_reassignments(plan)
    except ClientError as error:
        if megabytes is not None:
            _take_throttle_back(admin, error)
        raise
    print_note(f"{counted(len(plan), 'partition')} began to move; kbroker reassign status tells how far they are")


def _choose_directories(admin: AdminClient, directories: Mapping[TopicPartitionReplica, str], timeout_s: float) -> None:
    """Have brokers keep replicas in these log directories. Returns when each replica is there or moves there.

    A broker is asked until it has the replica, as Kafka's tool does: it may make it elsewhere before it is asked.
    Raises KbrokerError, which says that the moves have begun, if a broker refuses or it takes longer than `timeout_s`.
    """
    left, deadline = dict(directories), time.monotonic() + timeout_s
    while left:
        try:
            admin.alter_replica_log_dirs(left)
            return
        except ClientError as error:
            failed = error.errors if isinstance(error, PartialFailure) else dict.fromkeys(left, error)
            if any(each.code not in NOT_YET for each in failed.values()) or time.monotonic() > deadline:
                raise KbrokerError(f"the moves have begun, but not to all log directories named: {error}") from error
            left = {replica: left[replica] for replica in failed}
        time.sleep(ASK_AGAIN_S)


def _take_throttle_back(admin: AdminClient, error: ClientError) -> None:
    """Lift the throttle of moves that did not begin because of `error`, unless something moves.

    Raises KbrokerError, which tells of `error` too, if settings of the throttle are or may be left.
    """
    try:
        if not admin.list_partition_reassignments():
            lift_throttle(admin)
            return
        left = "the throttle stays for what moves, perhaps not at every broker; kbroker reassign status lifts it later"
    except ClientError as second:
        left = f"the throttle may be on ({second.message}); kbroker reassign status lifts it"
    except KbrokerError as second:
        left = f"nothing moves, but {second}"
    raise KbrokerError(f"{error.message}; {left}") from error


def _encoded(plan: Mapping[TopicPartition, Sequence[int]]) -> str:
    rows = [{"topic": at.topic, "partition": at.partition_id, "replicas": list(ids)} for at, ids in plan.items()]
    return json.dumps({"version": 1, "partitions": rows})


class _Plan(NamedTuple):
    """What a plan's file says: the replicas of partitions, and the log directories of replicas that have one named."""

    replicas: dict[TopicPartition, list[int]]
    directories: dict[TopicPartitionReplica, str]


def _decoded(name: str, text: str) -> _Plan:
    """Parse a plan. Raises KbrokerError, which names the file and what is wrong in it."""
    try:
        plan = json.loads(text)
    except ValueError as error:
        raise KbrokerError(f"{name} is no plan: {error}") from None
    rows = plan.get("partitions") if isinstance(plan, dict) else None
    if not isinstance(rows, list):
        raise KbrokerError(f'{name} is no plan: it has no "partitions"')
    found = _Plan({}, {})
    for number, row in enumerate(rows):
        fields = row if isinstance(row, dict) else {}
        topic, partition, replicas = fields.get("topic"), fields.get("partition"), fields.get("replicas")
        if not (isinstance(topic, str) and isinstance(partition, int) and _is_list(replicas, int)):
            raise KbrokerError(f'{name} is no plan: entry {number} is not {{"topic", "partition", "replicas"}}')
        at = TopicPartition(topic, partition)
        if at in found.replicas:
            raise KbrokerError(f"{name}: {at} is in it twice")
        if min(replicas, default=0) < 0:
            raise KbrokerError(f"{name}: {at}: {min(replicas)} is no broker's id")
        directories = fields.get("log_dirs", [ANY] * len(replicas))
        if not _is_list(directories, str) or len(directories) != len(replicas):
            raise KbrokerError(
                f'{name}: {at}: "log_dirs" has to be a list of {len(replicas)} paths, as many as replicas'
            )
        found.replicas[at] = replicas
        named = zip(replicas, directories, strict=True)
        found.directories.update({TopicPartitionReplica(*at, each): path for each, path in named if path != ANY})
    return found


def _is_list(value: object, of: type[T]) -> TypeGuard[list[T]]:
    return isinstance(value, list) and all(isinstance(each, of) for each in value)


# --- status and cancel ------------------------------------------------------------------------------------------------


def _status(admin: AdminClient, arguments: argparse.Namespace) -> int:
    for rows in looks(lambda: _moving(admin), again=arguments.watch):
        if arguments.json:
            print(json.dumps(rows) if arguments.watch else json.dumps(rows, indent=2), flush=True)
        else:
            _print_moving(rows)
        if not rows:
            if not arguments.preserve_throttles:
                lift_throttle(admin)
            return 0
    return 1


def _moving(admin: AdminClient) -> list[dict[str, Any]]:
    moving = admin.list_partition_reassignments()
    if not moving:
        return []
    sizes = replica_sizes(admin).sizes
    topics = without_missing(lambda: admin.describe_topics({at.topic for at in moving}))
    leaders = {
        TopicPartition(topic.name, each.partition): each.leader
        for topic in topics.values()
        for each in topic.partitions
    }
    return [_progress(at, each, sizes, leaders.get(at, -1)) for at, each in sorted(moving.items())]


def _progress(
    at: TopicPartition, moving: Reassignment, sizes: Mapping[tuple[int, TopicPartition], int], leader: int
) -> dict[str, Any]:
    whole = sizes.get((leader, at))
    copied = sum(min(whole or 0, sizes.get((each, at), 0)) for each in moving.adding)
    return {
        "topic": at.topic,
        "partition": at.partition_id,
        "replicas": list(moving.replicas),
        "adding": list(moving.adding),
        "removing": list(moving.removing),
        "bytes": None if whole is None else whole * len(moving.adding),
        "bytes_copied": None if whole is None else copied,
    }


def _print_moving(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        print("nothing is moving")
        return
    print_table(
        ["partition", "replicas", "adding", "removing", "copied", "of"],
        [
            [
                str(TopicPartition(row["topic"], row["partition"])),
                _words(row["replicas"]),
                _words(row["adding"]),
                _words(row["removing"]),
                *(None if row[name] is None else in_units(row[name]) for name in ("bytes_copied", "bytes")),
            ]
            for row in rows
        ],
    )


def _cancel(admin: AdminClient, arguments: argparse.Namespace) -> int:
    moving = admin.list_partition_reassignments()
    chosen = set(chosen_partitions(admin, arguments.topic)) if arguments.topic else set(moving)
    cancelled = sorted(chosen & moving.keys())
    try:
        if cancelled:
            admin.alter_partition_reassignments(dict.fromkeys(cancelled))
    except BrokerError as error:
        _forgive_what_is_done(error)
    if arguments.json:
        print_json([{"topic": at.topic, "partition": at.partition_id} for at in cancelled])
    else:
        print(f"{counted(len(cancelled), 'move')} cancelled")
    # What moves on keeps its throttle, which Kafka's tool would lift as well.
    if not arguments.preserve_throttles and not admin.list_partition_reassignments().keys() - set(cancelled):
        lift_throttle(admin)
    return 0


def _forgive_what_is_done(error: BrokerError) -> None:
    """Raise `error` unless it only says that moves have ended by themselves meanwhile."""
    errors: Iterable[Any] = error.errors.values() if isinstance(error, PartialFailure) else [error]
    if any(each.code != ErrorCode.NO_REASSIGNMENT_IN_PROGRESS for each in errors):
        raise error


def _words(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
