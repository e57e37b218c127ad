"""`kbroker cluster status`: the state of a cluster at a glance.

A broker's HTTP port (`kbroker.http.address`) tells its version and whether it is ready. If the port cannot be reached,
a broker counts as ready if it answers and none of its log directories has an error or a full disk.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from kbroker.cli.client_options import connect
from kbroker.cli.full_disks import full_directories
from kbroker.cli.outcome import FAILED
from kbroker.cli.output import counted, print_json, print_table
from kbroker.cli.progress import in_units
from kbroker.cli.replication_warnings import min_in_sync_of, print_warnings, replication_warnings
from kbroker.cli.topic_facts import log_dirs, replicas_at_the_end, without_missing
from kbroker.cli.watch import looks
from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.admin.results import (
    Broker,
    ClusterDescription,
    GroupListing,
    LogDirDescription,
    PartitionDescription,
    Reassignment,
    TopicDescription,
    TopicPartitionReplica,
)
from kbroker.client.errors import ClientError, ConnectionFailed, PartialFailure, TimedOut
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.net.addresses import parse_bootstrap
from kbroker.rules.min_in_sync import needed_in_sync

HTTP_ADDRESS = "kbroker.http.address"
HTTP_TIMEOUT_S = 2.0
MOST_LAGGING = 10
"""How many replicas that are not in sync are printed by name."""
EVERY_ADDRESS = ("", "0.0.0.0", "::")
ABOUT = re.compile(r"^kbroker_info\{([^}\n]*)\}", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


def run(arguments: argparse.Namespace) -> int:
    is_ready = False
    warned: list[str] = []
    with connect(arguments) as admin:
        for status in looks(lambda: _status(admin), again=arguments.watch):
            is_ready = status["ready"]
            if warned != status["warnings"]:  # a watch repeats none
                warned = status["warnings"]
                print_warnings(warned)
            if not arguments.watch:
                print_json(status) if arguments.json else _print_status(status)
            elif arguments.json:
                print(json.dumps(status), flush=True)
            else:
                _print_status(status)
                print(flush=True)
    return 0 if is_ready else FAILED


def _status(admin: AdminClient) -> dict[str, Any]:
    cluster = admin.describe_cluster()
    directories, errors = log_dirs(admin)
    # Brokers before Kafka 1.0 cannot tell.
    untold = {node_id: error for node_id, error in errors.items() if error.code != ErrorCode.UNSUPPORTED_VERSION}
    silent = {node_id for node_id, error in untold.items() if isinstance(error, TimedOut | ConnectionFailed)}
    listed, ungrouped = _groups(admin, cluster)
    names = admin.list_topics(internal=True)
    topics = without_missing(lambda: admin.describe_topics(names)).values() if names else ()
    partitions = [partition for topic in topics for partition in topic.partitions]
    led = Counter(partition.leader for partition in partitions)
    brokers = [
        _broker(
            admin,
            cluster,
            broker,
            directories.get(broker.node_id),
            [each[broker.node_id] for each in (untold, ungrouped) if broker.node_id in each],
        )
        | {"leads": led[broker.node_id]}
        for broker in sorted(cluster.brokers, key=lambda broker: broker.node_id)
    ]
    groups = Counter(group.state or "of no known state" for group in listed)
    offline = sum(partition.leader < 0 for partition in partitions)
    moving, problems = _moving(admin, cluster, silent)
    under_replicated = sum(
        _is_under_replicated(topic.name, each, moving) for topic in topics for each in topic.partitions
    )
    min_in_sync = min_in_sync_of(admin, [topic.name for topic in topics])
    under_min_isr = sum(
        _is_under_min_isr(each, min_in_sync[topic.name])
        for topic in topics
        if topic.name in min_in_sync
        for each in topic.partitions
    )
    replicas = [
        (topic.name, len(replicas_at_the_end(each.replicas, moving.get(TopicPartition(topic.name, each.partition)))))
        for topic in topics
        for each in topic.partitions
    ]
    return {
        "ready": bool(brokers)
        and not (problems or offline or under_replicated or under_min_isr)
        and all(each["ready"] for each in brokers),
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "problems": problems,
        "brokers": brokers,
        "topics": sum(not topic.is_internal for topic in topics),
        "internal_topics": sum(topic.is_internal for topic in topics),
        "partitions": len(partitions),
        "under_replicated_partitions": under_replicated,
        "under_min_isr_partitions": under_min_isr,
        "offline_partitions": offline,
        "moving_partitions": len(moving),
        "lagging": _lagging(admin, topics, {broker.node_id for broker in cluster.brokers}, silent),
        "groups": dict(sorted(groups.items())),
        "warnings": replication_warnings(replicas, min_in_sync, len(brokers)),
    }


def _moving(
    admin: AdminClient, cluster: ClusterDescription, silent: set[int]
) -> tuple[Mapping[TopicPartition, Reassignment], list[str]]:
    """Return the partitions whose replicas are moving, and what is wrong with the controller, which tells them.

    A controller that is `silent` is not asked: its broker is not ready, and that says so.
    """
    if cluster.controller_id not in {broker.node_id for broker in cluster.brokers}:
        return {}, ["there is no controller: nobody is elected, and no topic made"]
    if cluster.controller_id in silent:
        return {}, []
    try:
        return admin.list_partition_reassignments(), []
    except ClientError as error:
        # A controller before Kafka 2.4 cannot tell.
        unable = error.code == ErrorCode.UNSUPPORTED_VERSION
        return {}, [] if unable else [f"the controller does not do its work, or cannot reach ZooKeeper: {error}"]


def _is_under_replicated(
    topic: str, partition: PartitionDescription, moving: Mapping[TopicPartition, Reassignment]
) -> bool:
    """Whether a replica is not in sync. One that a move adds has to copy first, and is not missed."""
    move = moving.get(TopicPartition(topic, partition.partition))
    adding = set(move.adding) if move is not None else set()
    return bool(set(partition.replicas) - set(partition.in_sync) - adding)


def _is_under_min_isr(partition: PartitionDescription, min_in_sync: int) -> bool:
    """Whether acks=all is refused by the partition's leader. Replicas that a move adds count, as they do there."""
    return partition.leader >= 0 and len(partition.in_sync) < needed_in_sync(len(partition.replicas), min_in_sync)


def _lagging(
    admin: AdminClient, topics: Iterable[TopicDescription], alive: set[int], silent: set[int]
) -> list[dict[str, Any]]:
    """Return the replicas that are not in sync, and by how many offsets they lag; None where nobody tells.

    Brokers that are `silent` are not asked.
    """
    behind = [
        (TopicPartitionReplica(topic.name, each.partition, node_id), each.leader)
        for topic in topics
        for each in topic.partitions
        for node_id in each.replicas
        if node_id not in each.in_sync
    ]
    asked = alive - silent
    ends = _log_ends(admin, [replica for replica, _ in behind if replica.node_id in asked])
    leaders = {replica: replica._replace(node_id=leader) for replica, leader in behind}
    their_ends = _log_ends(admin, [leaders[replica] for replica in ends if leaders[replica].node_id in asked])
    return [
        {
            "topic": replica.topic,
            "partition": replica.partition_id,
            "broker": replica.node_id,
            "alive": replica.node_id in alive,
            "lag": _lag(ends.get(replica), their_ends.get(leaders[replica])),
        }
        for replica, _ in behind
    ]


def _lag(end: int | None, of_leader: int | None) -> int | None:
    """Return by how many offsets a replica lags; None if it or its leader does not tell its end."""
    return None if end is None or of_leader is None else max(0, of_leader - end)


def _log_ends(admin: AdminClient, replicas: Iterable[TopicPartitionReplica]) -> Mapping[TopicPartitionReplica, int]:
    """Return the log end offsets of replicas, without those that nobody tells."""
    try:
        return admin.list_log_end_offsets(replicas)
    except PartialFailure as error:
        return error.results
    except ClientError:
        return {}


def _groups(admin: AdminClient, cluster: ClusterDescription) -> tuple[list[GroupListing], dict[int, ClientError]]:
    """Return the groups, and the errors of brokers that do not tell theirs."""
    try:
        return admin.list_groups(), {}
    except PartialFailure as failure:
        return [*chain.from_iterable(failure.results.values())], failure.errors
    except ClientError as error:
        return [], {broker.node_id: error for broker in cluster.brokers}


def _broker(
    admin: AdminClient,
    cluster: ClusterDescription,
    broker: Broker,
    directories: tuple[LogDirDescription, ...] | None,
    errors: Iterable[ClientError],
) -> dict[str, Any]:
    """Return what is known of a broker. `errors`: those of calls to it that have failed already."""
    problems = list(dict.fromkeys(map(str, errors)))
    settings: dict[str, str | None] = {}
    if not problems:
        try:
            settings = {name: each.value for name, each in admin.describe_broker_config(broker.node_id).items()}
        except ClientError as error:
            problems.append(str(error))
    problems += [str(each.error) for each in directories or () if each.error is not None]
    version, said = _by_http(cluster, broker, settings.get(HTTP_ADDRESS) or "")
    problems += said or [f"log directory {path} is full" for path in full_directories(directories or ())]
    return {
        "id": broker.node_id,
        "address": f"{broker.host}:{broker.port}",
        "rack": broker.rack,
        "version": version,
        "listeners": (settings.get("listeners") or "").split(",") if settings.get("listeners") else [],
        "ready": not problems,
        "problems": problems,
        "log_dirs": [
            {
                "path": each.path,
                "partitions": len(each.replicas),
                "size": sum(replica.size for replica in each.replicas.values()),
                "total": each.total_bytes if each.total_bytes >= 0 else None,
                "free": each.usable_bytes if each.usable_bytes >= 0 else None,
                "error": None if each.error is None else str(each.error),
            }
            for each in directories or ()
        ],
    }


def _by_http(cluster: ClusterDescription, broker: Broker, address: str) -> tuple[str | None, list[str]]:
    """Return the broker's version and its problems, as its HTTP port tells them; (None, []) if it does not answer.

    The answer of another broker is ignored: an address such as 127.0.0.1 is this machine's, not the broker's.
    """
    if not address:
        return None, []
    ((host, port),) = parse_bootstrap(address if not address.startswith(":") else f"0.0.0.0{address}")
    host = broker.host if host in EVERY_ADDRESS else host
    try:
        _, metrics = _get(host, port, "/metrics")
        status, ready = _get(host, port, "/ready")
    except (OSError, http.client.HTTPException):
        return None, []  # the port is not open to us, or not any more
    found = ABOUT.search(metrics)
    about = dict(LABEL.findall(found[1])) if found else {}
    if (about.get("node_id"), about.get("cluster_id")) != (str(broker.node_id), cluster.cluster_id):
        return None, []
    return about.get("version"), [] if status == http.client.OK else ready.splitlines()


def _get(host: str, port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=HTTP_TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    finally:
        connection.close()


def _print_status(status: dict[str, Any]) -> None:
    print(f"cluster {status['cluster_id'] or '-'}, controller {status['controller']}")
    for problem in status["problems"]:
        print(f"  {problem}")
    for broker in status["brokers"]:
        version = f", kbroker {broker['version']}" if broker["version"] else ""
        rack = f", rack {broker['rack']}" if broker["rack"] else ""
        ready = "ready" if broker["ready"] else "NOT ready"
        print(f"broker {broker['id']} at {broker['address']}{rack}{version}: {ready}")
        for problem in broker["problems"]:
            print(f"  {problem}")
        if len(status["brokers"]) > 1:
            print(f"  leads {broker['leads']:,} of {counted(status['partitions'], 'partition')}")
        if broker["listeners"]:
            print(f"  listeners {', '.join(broker['listeners'])}")
    print(
        f"{counted(status['topics'], 'topic')} and {status['internal_topics']} internal, "
        f"{counted(status['partitions'], 'partition')}, {status['under_replicated_partitions']} under-replicated, "
        f"{status['under_min_isr_partitions']} under min ISR, {status['offline_partitions']} without a leader"
        + (f", {status['moving_partitions']} moving" if status["moving_partitions"] else "")
    )
    for each in status["lagging"][:MOST_LAGGING]:
        how = f"is {each['lag']:,} offsets behind" if each["alive"] and each["lag"] is not None else "is not in sync"
        gone = "" if each["alive"] else ", its broker is not there"
        print(f"  {each['topic']}-{each['partition']} on broker {each['broker']} {how}{gone}")
    if len(status["lagging"]) > MOST_LAGGING:
        print(f"  and {len(status['lagging']) - MOST_LAGGING:,} more replicas")
    states = ", ".join(f"{count} {state}" for state, count in status["groups"].items())
    print(f"{counted(sum(status['groups'].values()), 'group')}{': ' + states if states else ''}")
    rows = [
        [
            broker["id"],
            each["path"],
            each["partitions"],
            in_units(each["size"]),
            None if each["free"] is None else in_units(each["free"]),
            None if each["total"] is None else in_units(each["total"]),
            each["error"],
        ]
        for broker in status["brokers"]
        for each in broker["log_dirs"]
    ]
    if rows:
        print_table(["broker", "log directory", "partitions", "size", "free", "of", "error"], rows)
