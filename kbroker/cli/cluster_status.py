"""`kbroker cluster status`: the state of a cluster at a glance.

A broker's HTTP port (`kbroker.http.address`) tells its version and whether it is ready. If the port cannot be reached,
a broker counts as ready if it answers and none of its log directories has an error or a full disk.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.cli.client_options import connect
from kbroker.cli.full_disks import full_directories
from kbroker.cli.outcome import FAILED
from kbroker.cli.output import counted, print_json, print_table
from kbroker.cli.progress import in_units
from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.admin.results import (
    Broker,
    ClusterDescription,
    LogDirDescription,
    PartitionDescription,
    Reassignment,
    TopicDescription,
    TopicPartitionReplica,
)
from kbroker.client.errors import ClientError, PartialFailure
from kbroker.model import TopicPartition
from kbroker.net.addresses import parse_bootstrap

HTTP_ADDRESS = "kbroker.http.address"
HTTP_TIMEOUT_S = 2.0
EVERY_S = 2.0
"""The pause between two looks with --watch."""
MOST_LAGGING = 10
"""How many replicas that are not in sync are printed by name."""
EVERY_ADDRESS = ("", "0.0.0.0", "::")
ABOUT = re.compile(r"^kbroker_info\{([^}\n]*)\}", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


def run(arguments: argparse.Namespace) -> int:
    with connect(arguments) as admin:
        while True:
            status = _status(admin)
            if arguments.json:
                print(json.dumps(status), flush=True) if arguments.watch else print_json(status)
            else:
                _print_status(status)
            if not arguments.watch:
                return 0 if status["ready"] else FAILED
            time.sleep(EVERY_S)
            print(flush=True)


def _status(admin: AdminClient) -> dict[str, Any]:
    cluster = admin.describe_cluster()
    directories = _log_dirs(admin)
    names = admin.list_topics(internal=True)
    topics = admin.describe_topics(names).values() if names else ()
    partitions = [partition for topic in topics for partition in topic.partitions]
    led = Counter(partition.leader for partition in partitions)
    brokers = [
        _broker(admin, cluster, broker, directories.get(broker.node_id)) | {"leads": led[broker.node_id]}
        for broker in sorted(cluster.brokers, key=lambda broker: broker.node_id)
    ]
    groups = Counter(group.state or "of no known state" for group in admin.list_groups())
    offline = sum(partition.leader < 0 for partition in partitions)
    moving = _moving(admin) if cluster.controller_id >= 0 else {}
    under_replicated = sum(
        _is_under_replicated(topic.name, each, moving) for topic in topics for each in topic.partitions
    )
    return {
        "ready": bool(brokers) and not offline and not under_replicated and all(each["ready"] for each in brokers),
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "brokers": brokers,
        "topics": sum(not topic.is_internal for topic in topics),
        "internal_topics": sum(topic.is_internal for topic in topics),
        "partitions": len(partitions),
        "under_replicated_partitions": under_replicated,
        "offline_partitions": offline,
        "moving_partitions": len(moving),
        "lagging": _lagging(admin, topics, {broker.node_id for broker in cluster.brokers}),
        "groups": dict(sorted(groups.items())),
    }


def _moving(admin: AdminClient) -> Mapping[TopicPartition, Reassignment]:
    """Return the partitions whose replicas are moving, as far as the controller tells."""
    try:
        return admin.list_partition_reassignments()
    except ClientError:
        return {}  # a controller before Kafka 2.4, or one that is gone


def _is_under_replicated(
    topic: str, partition: PartitionDescription, moving: Mapping[TopicPartition, Reassignment]
) -> bool:
    """Whether a replica is not in sync. One that a move adds has to copy first, and is not missed."""
    move = moving.get(TopicPartition(topic, partition.partition))
    adding = set(move.adding) if move is not None else set()
    return bool(set(partition.replicas) - set(partition.in_sync) - adding)


def _lagging(admin: AdminClient, topics: Iterable[TopicDescription], alive: set[int]) -> list[dict[str, Any]]:
    """Return the replicas that are not in sync, and by how many offsets they lag; None where nobody tells."""
    behind = [
        (TopicPartitionReplica(topic.name, each.partition, node_id), each.leader)
        for topic in topics
        for each in topic.partitions
        for node_id in each.replicas
        if node_id not in each.in_sync
    ]
    ends = _log_ends(admin, [replica for replica, _ in behind if replica.node_id in alive])
    leaders = {replica: replica._replace(node_id=leader) for replica, leader in behind}
    their_ends = _log_ends(admin, [leaders[replica] for replica in ends if leaders[replica].node_id in alive])
    return [
        {
            "topic": replica.topic,
            "partition": replica.partition_id,
            "broker": replica.node_id,
            "alive": replica.node_id in alive,
            "lag": None if (end := their_ends.get(leaders[replica])) is None else max(0, end - ends[replica]),
        }
        for replica, _ in behind
    ]


def _log_ends(admin: AdminClient, replicas: Iterable[TopicPartitionReplica]) -> Mapping[TopicPartitionReplica, int]:
    """Return the log end offsets of replicas, without those that nobody tells."""
    try:
        return admin.list_log_end_offsets(replicas)
    except PartialFailure as error:
        return error.results
    except ClientError:
        return {}


def _log_dirs(admin: AdminClient) -> dict[int, tuple[LogDirDescription, ...]]:
    """Return the log directories by broker, without brokers that do not tell."""
    try:
        return admin.describe_log_dirs()
    except PartialFailure as error:
        return error.results
    except ClientError:
        return {}  # brokers before Kafka 1.0, or ones that are gone


def _broker(
    admin: AdminClient, cluster: ClusterDescription, broker: Broker, directories: tuple[LogDirDescription, ...] | None
) -> dict[str, Any]:
    problems: list[str] = []
    settings: dict[str, str | None] = {}
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
        f"{status['offline_partitions']} without a leader"
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
