"""Writes docs/PROTOCOL.md from the table of APIs."""

from __future__ import annotations

import generated_page

from kbroker.protocol.api import SERVED, ApiKey, request_class

HEAD = """\
# The protocol that kbroker serves

Written by `tools/make_protocol_docs.py` from `kbroker/protocol/api.py`; do not edit.

The messages are those of Apache Kafka 3.9; consumer groups of the newer protocol (KIP-848) and transactions of version
2 (KIP-890: Produce 12, EndTxn 5, TxnOffsetCommit 5, WriteTxnMarkers 2) are as in 4.3, and so is ListConfigResources 1
(KIP-1142).
"Flexible from" is the first version with compact sizes and tagged fields (KIP-482). Where a range differs from that of
Kafka 3.9, or an API is served only in part, the last column says so; `docs/DEVIATIONS.md` has the reasons.

A member of a cluster in which there is an Apache Kafka says in ApiVersions that it serves Produce up to 11, EndTxn and
TxnOffsetCommit up to 4, and ListConfigResources in version 0 only. As Kafka 3.9 does in ZooKeeper mode, it answers
UNSUPPORTED_VERSION to ConsumerGroupHeartbeat and ConsumerGroupDescribe, in version 1 too.

"""

FROM_CONTROLLER = "from the controller to the members of its cluster"
AT_CONTROLLER = "at the controller of a cluster; other members answer NOT_CONTROLLER"
BY_CONTROLLER = "in a cluster by the controller; other members answer NOT_CONTROLLER"
NOTES = {
    ApiKey.LEADER_AND_ISR: FROM_CONTROLLER,
    ApiKey.STOP_REPLICA: FROM_CONTROLLER,
    ApiKey.UPDATE_METADATA: FROM_CONTROLLER,
    ApiKey.CONTROLLED_SHUTDOWN: "at the controller of a cluster; other members answer STALE_CONTROLLER_EPOCH",
    ApiKey.CREATE_TOPICS: BY_CONTROLLER,
    ApiKey.DELETE_TOPICS: BY_CONTROLLER,
    ApiKey.CREATE_PARTITIONS: BY_CONTROLLER,
    ApiKey.ALTER_PARTITION: AT_CONTROLLER,
    ApiKey.ALLOCATE_PRODUCER_IDS: AT_CONTROLLER,
    ApiKey.ELECT_LEADERS: f"{AT_CONTROLLER}; ELECTION_NOT_NEEDED at a broker that is alone",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: f"{AT_CONTROLLER}; a broker that is alone has nothing to move",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: f"{AT_CONTROLLER}; a broker that is alone has none",
    ApiKey.SASL_HANDSHAKE: "ILLEGAL_SASL_STATE on a listener without SASL, as in Kafka",
    ApiKey.SASL_AUTHENTICATE: "ILLEGAL_SASL_STATE on a listener without SASL, as in Kafka",
    ApiKey.DESCRIBE_QUORUM: "one voter, the broker itself; UNSUPPORTED_VERSION at a member of a cluster, as in Kafka",
    ApiKey.UPDATE_FEATURES: "whatever would change a feature is refused",
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "no metrics are wanted",
    ApiKey.LIST_CONFIG_RESOURCES: "version 0 is ListClientMetricsResources, of which there are none",
    ApiKey.API_VERSIONS: "an unknown version is answered in version 0 with UNSUPPORTED_VERSION (KIP-511)",
}

LAST_OF_3_9 = {
    ApiKey.PRODUCE: 11,
    ApiKey.END_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 0,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 0,
    ApiKey.LIST_CONFIG_RESOURCES: 0,
}
"""The last version in Kafka 3.9 of those messages that have versions of Kafka 4.3 too."""

TAIL = """
A request of any other API or version closes its connection, with one log line. So does a request whose bytes do not
parse: counts and sizes are believed only as far as bytes are there, strings must be UTF-8, and one message has
at most 1,048,576 array elements. Unknown tagged fields are skipped, and so is what follows the message.

## Between brokers

In a cluster in ZooKeeper ([CLUSTER.md](CLUSTER.md)) members send each other what a Kafka at
inter.broker.protocol.version 3.9 sends: LeaderAndIsr 7, StopReplica 4, UpdateMetadata 8, Fetch 17 (12 for a topic
without an id), ListOffsets 9, ControlledShutdown 3, AlterPartition 3, AllocateProducerIds 0, AddPartitionsToTxn 4 or 5,
WriteTxnMarkers 1, or 2 to a broker that serves it. All of these are served in older versions too, and so is
OffsetForLeaderEpoch, which older followers ask. A broker that is alone answers CLUSTER_AUTHORIZATION_FAILED to
LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown, AlterPartition and AllocateProducerIds.

- A Fetch with a replica id (`replica_id`, from version 15 on `replica_state`) is a follower's. It reads to the log's
  end, moves the high watermark, and is refused by a broker that does not lead, or whose partition has no such replica.
  With `last_fetched_epoch` (from version 12 on) a log that differs is answered with `diverging_epoch`; consumers may
  send it too. `replica_state.replica_epoch` is the broker epoch of the follower.
- A Fetch of a consumer from version 11 on is also served by followers, up to their high watermark (KIP-392).
- ListOffsets of a replica is told the log's end, that of a consumer the high watermark or the last stable offset.
- `is_kraft_controller` and `type` of LeaderAndIsr, StopReplica and UpdateMetadata are not looked at: there is no KRaft.
  Nor are `cluster_id` and `replica_directory_id` of Fetch, `live_leaders` and `leader_recovery_state` of LeaderAndIsr,
  and the controller epoch of a single partition in LeaderAndIsr and UpdateMetadata. That of the request counts.
- In AlterPartition the broker epoch of each replica (version 3, KIP-903) is compared if it is not -1.

"""


def versions(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def note(api_key: ApiKey) -> str:
    served, known = SERVED[api_key], request_class(api_key)
    notes = [NOTES[api_key]] if api_key in NOTES else []
    last = LAST_OF_3_9.get(api_key, known.MAX_VERSION)
    if (served.min, served.max) != (known.MIN_VERSION, last):
        notes.append(f"Kafka 3.9: {versions(known.MIN_VERSION, last)}")
    return "; ".join(notes)


def document() -> str:
    """Return the whole text of docs/PROTOCOL.md."""
    lines = ["| key | API | versions | flexible from | |", "|---|---|---|---|---|"]
    for api_key, served in SERVED.items():
        flexible = "" if served.flexible_from is None else served.flexible_from
        lines.append(
            f"| {api_key:d} | {api_key.label} | {versions(served.min, served.max)} | {flexible} | {note(api_key)} |"
        )
    others = ", ".join(f"{api_key:d} {api_key.label}" for api_key in ApiKey if api_key not in SERVED)
    return HEAD + "\n".join(lines) + "\n" + TAIL + generated_page.wrapped(f"Known, not served: {others}.") + "\n"


if __name__ == "__main__":
    raise SystemExit(generated_page.write("PROTOCOL.md", document()))
