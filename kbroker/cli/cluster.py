"""Show how a cluster is; carry the topics and settings of a stopped broker into a ZooKeeper, and back.

docs/CLUSTER.md goes through it for a broker that joins a cluster, docs/MIGRATION.md for a broker that takes turns with
an Apache Kafka.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.cli import arguments as args
from kbroker.cli import cluster_status
from kbroker.cli.client_options import add_cluster
from kbroker.cli.output import print_json
from kbroker.errors import KbrokerError

if TYPE_CHECKING:
    from kbroker.cluster.transfer import Plan
    from kbroker.coordination.store import Operation
    from kbroker.storage.log_manager import LogManager

EXAMPLES = """examples:
  kbroker cluster status
  kbroker cluster status --watch
  kbroker cluster status --json -b broker.example.org:9092
  kbroker cluster import --zookeeper localhost:2181 --data /var/lib/kafka --dry-run
  kbroker cluster import --zookeeper zk1:2181,zk2:2181/kafka --data /disk1/kafka --data /disk2/kafka
  kbroker cluster export --zookeeper localhost:2181 --data /var/lib/kafka
"""


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    status = actions.add_parser(
        "status", help="brokers, topics, groups, log directories and their free space; 1 if anything is not ready"
    )
    status.add_argument("--watch", action="store_true", help="again every two seconds, until Ctrl-C")
    add_cluster(status)
    args.add_json(status)
    importing = actions.add_parser(
        "import", help="from a ZooKeeper into the log directory of a broker that goes on alone"
    )
    exporting = actions.add_parser(
        "export", help="into a ZooKeeper, where kbroker or Kafka goes on as a member of a cluster"
    )
    for action in (importing, exporting):
        action.add_argument(
            "-z", "--zookeeper", required=True, metavar="HOST:PORT[/CHROOT]",
            help="as in Kafka's zookeeper.connect: several separated by commas, a chroot behind the last",
        )  # fmt: skip
        action.add_argument(
            "-d", "--data", required=True, action="append", metavar="DIR",
            help="a log directory; once for each of log.dirs, in their order",
        )  # fmt: skip
        action.add_argument("--dry-run", action="store_true", help="only say what would be written")
        action.add_argument(
            "--broker-id", type=int, metavar="ID", help="of the broker; by default what the log directory says"
        )
        action.add_argument(
            "--only-replica", action="store_true", help="other brokers' replicas of its partitions are given up"
        )
        action.add_argument(
            "--allow-empty", action="store_true", help="partitions that have no log in the directories begin empty"
        )
        action.add_argument(
            "--timeout", type=args.positive_seconds, default=30.0, metavar="SECONDS",
            help="how long to wait for ZooKeeper (default %(default)s)",
        )  # fmt: skip
        args.add_json(action)


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "status":
        return cluster_status.run(arguments)
    from kbroker.storage.log_manager import LogManager
    from kbroker.storage.options import StorageOptions

    missing = [directory for directory in arguments.data if not Path(directory).is_dir()]
    if missing:
        raise KbrokerError(f"{missing[0]} is no directory")
    logs = LogManager(StorageOptions(tuple(str(Path(each).expanduser()) for each in arguments.data)))
    try:
        plan = _carry(arguments, logs)
    finally:
        logs.stop()
    _print_plan(arguments, plan)
    return 0


def _carry(arguments: argparse.Namespace, logs: LogManager) -> Plan:
    from kbroker.cluster.carried_nodes import read_carried
    from kbroker.cluster.transfer import TransferOptions, plan_export, plan_import
    from kbroker.coordination.embedded import EmbeddedStore
    from kbroker.coordination.parcels import parcels
    from kbroker.coordination.zookeeper import ZooKeeperStore
    from kbroker.server.found_logs import find_store, found_partitions, refuse_carried
    from kbroker.server.own_store import put_aside

    identity = logs.lock_directories()
    if logs.left_out:
        raise KbrokerError("; ".join(logs.left_out))
    broker_id = None if identity is None else identity.node_id
    if broker_id is not None and arguments.broker_id not in (None, broker_id):
        raise KbrokerError(f"{arguments.data[0]} is of broker {broker_id}, not of {arguments.broker_id}")
    broker_id = arguments.broker_id if broker_id is None else broker_id
    if broker_id is None:
        raise KbrokerError(f"{arguments.data[0]} does not say whose it is: give --broker-id")
    options = TransferOptions(broker_id, arguments.only_replica, arguments.allow_empty)
    found = {each.topic_partition: each.topic_id for each in found_partitions(logs.usable_directories)}
    is_import = arguments.action == "import"
    if not is_import:
        refuse_carried(Path(each) for each in logs.usable_directories)
    path = find_store(logs)
    if not is_import and not Path(path).exists():
        raise KbrokerError(f"{path} is not there: no kbroker has been started on {arguments.data[0]}")
    with contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(contextlib.closing(ZooKeeperStore(arguments.zookeeper, arguments.timeout)))
        there = read_carried(zookeeper)
        cluster_id = identity.cluster_id if identity else None
        if is_import and cluster_id and there.cluster_id and cluster_id != there.cluster_id:
            raise KbrokerError(f"{arguments.data[0]} is of cluster {cluster_id}, that ZooKeeper of {there.cluster_id}")
        has_store = Path(path).exists()
        store = EmbeddedStore(path)
        if not has_store:
            stack.callback(lambda: None if has_store else _forget(path))
        stack.callback(store.stop)
        session = store.connect()
        ours = read_carried(session)
        if is_import:
            plan = plan_import(there, ours, session, found, options)
        else:
            plan = plan_export(ours, there, zookeeper, found, options)
        if plan.operations and not arguments.dry_run:
            if is_import:
                session.multi(plan.operations)
            else:
                zookeeper.make_chroot()
                for some in parcels(plan.operations):
                    zookeeper.multi(some)
        if is_import and not arguments.dry_run:
            has_store = True
            _identify(logs, broker_id, str(there.cluster_id))
    if not is_import and not arguments.dry_run:
        plan.notes.append(f"what {path} had is in ZooKeeper from now on; the file is kept as {put_aside(path)}")
    return plan


def _identify(logs: LogManager, broker_id: int, cluster_id: str) -> None:
    """Write the broker's and the cluster's id into the log directories."""
    from kbroker.fs import RealFileSystem
    from kbroker.storage.directory import ensure_meta_properties

    for directory in logs.usable_directories:
        ensure_meta_properties(RealFileSystem(), directory, broker_id, cluster_id)


def _forget(path: str) -> None:
    """Remove a store that was made only for a dry run or for an import that failed."""
    for suffix in ("", "-wal", "-shm"):
        Path(path + suffix).unlink(missing_ok=True)


def _print_plan(arguments: argparse.Namespace, plan: Plan) -> None:
    if arguments.json:
        print_json(
            {
                "topics": plan.topic_count,
                "partitions": plan.partition_count,
                "written": 0 if arguments.dry_run else len(plan.operations),
                "changes": list(_changes(plan.operations)) if arguments.dry_run else len(plan.operations),
                "notes": plan.notes,
            }
        )
        return
    if arguments.dry_run:
        for change in _changes(plan.operations):
            print(f"{change['what']} {change['path']}  {change['data']}".rstrip())
    for note in plan.notes:
        print(f"note: {note}")
    would = "would be " if arguments.dry_run else ""
    done = f"carried {'out of' if arguments.action == 'import' else 'into'} ZooKeeper"
    print(
        f"{plan.topic_count} topics with {plan.partition_count} partitions {would}{done}: "
        f"{len(plan.operations)} nodes {would}written"
    )


def _changes(operations: list[Operation]) -> Iterator[dict[str, str]]:
    from kbroker.coordination.store import Create, SetData

    for each in operations:
        what = "create" if isinstance(each, Create) else "set" if isinstance(each, SetData) else "delete"
        data = each.data.decode("utf-8", "replace") if isinstance(each, Create | SetData) else ""
        yield {"what": what, "path": each.path, "data": data}
