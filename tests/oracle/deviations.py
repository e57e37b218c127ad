"""Where kbroker's answers differ from Apache Kafka's on purpose: for `test_answers.py` and docs/DEVIATIONS.md.

A difference that is not listed here fails its test, and so does a listed difference that is gone.
"""

from __future__ import annotations

from tests.oracle.deviation import (
    KAFKA_FAILS,
    LARGE_ANSWERS,
    NEVER_ANSWERS,
    NO_FEATURES,
    OWN_DEFAULT,
    STATIC,
    STRICT,
    TWICE,
    Deviation,
    matches,
)
from tests.oracle.old_versions import OLD_VERSIONS

__all__ = ["DEVIATIONS", "Deviation", "matches"]

DEVIATIONS: tuple[Deviation, ...] = (
    # --- ApiVersions and whatever comes before an API -----------------------------------------------------------
    Deviation(
        (
            "api_versions.what_is_served",
            "api_versions.several_times*",
            "api_versions.names_of_software",
            "api_versions.bytes_behind*",
        ),
        ("*.supported_features[*", "*.finalized_features[*", "*.finalized_features_epoch"),
        "transaction.version is the only feature, at level 2 in an epoch of 0. A member of a cluster in which there is "
        "an Apache Kafka has it at level 1; the epoch of a member is a time. As in Kafka 4, versions before 4 do not "
        "tell that it is supported from level 0 on.",
        NO_FEATURES,
        since=3,
    ),
    Deviation(
        ("api_versions.several_times*", "api_versions.bytes_behind*"),
        ("*.supported_features[*", "*.finalized_features[*", "*.finalized_features_epoch"),
        "transaction.version is the only feature, whatever was asked for before on the connection.",
        NO_FEATURES,
    ),
    Deviation(
        (
            "api_versions.what_is_served",
            "api_versions.several_times*",
            "api_versions.names_of_software",
            "api_versions.bytes_behind*",
        ),
        (
            "*.api_keys[0].max_version",
            "*.api_keys[26].max_version",
            "*.api_keys[27].max_version",
            "*.api_keys[28].max_version",
        ),
        "Produce 12, EndTxn 5, WriteTxnMarkers 2 and TxnOffsetCommit 5 are served as Kafka 4.3 does.",
        "Clients and brokers use them for transactions of version 2 (KIP-890, KIP-1228).",
    ),
    Deviation(
        (
            "api_versions.what_is_served",
            "api_versions.several_times*",
            "api_versions.names_of_software",
            "api_versions.bytes_behind*",
        ),
        ("*.api_keys[71]",),
        "GetTelemetrySubscriptions is served, and wants no metrics. Kafka serves it without a plugin that takes "
        "metrics too, but does not say so.",
        "A client gets its instance id (KIP-714).",
        kafka="<absent>",
    ),
    Deviation(
        (
            "api_versions.what_is_served",
            "api_versions.several_times*",
            "api_versions.names_of_software",
            "api_versions.bytes_behind*",
        ),
        ("*.api_keys[74].max_version",),
        "ListConfigResources is served as Kafka 4.3 does, in versions 0 and 1. In 3.9 it is version 0 of "
        "ListClientMetricsResources; so it is beside an Apache Kafka, which does not serve it in ZooKeeper mode.",
        "Tools of 4.3 list with it what has configs.",
        kafka=0,
        ours=1,
    ),
    Deviation(
        (
            "api_versions.what_is_served",
            "api_versions.several_times*",
            "api_versions.names_of_software",
            "api_versions.bytes_behind*",
        ),
        ("*.api_keys[68].max_version", "*.api_keys[69].max_version"),
        "ConsumerGroupHeartbeat and ConsumerGroupDescribe are served as Kafka 4.3 does, in versions 0 and 1. Beside an "
        "Apache Kafka both are advertised too, and answered UNSUPPORTED_VERSION, as 3.9 answers 0 in ZooKeeper mode.",
        "Clients of the consumer group protocol (KIP-848) ask for them; 3.9 has a preview of it. librdkafka waits for "
        "ever, without an error, where there is no version 1.",
        kafka=0,
        ours=1,
    ),
    Deviation(
        ("api_versions.frames_that_are_none",),
        ("[8 raw]",),
        "A client id with the length -2 closes the connection; Kafka takes any negative length for null.",
        STRICT,
        ours="<closed>",
    ),
    Deviation(
        ("api_versions.texts_that_are_none",),
        ("*key 3*",),
        "Text that is not UTF-8 closes the connection; Kafka puts replacement characters in its place.",
        STRICT + " Two names would become one.",
    ),
    Deviation(
        ("api_versions.counts_that_promise_too_much",),
        ("[2 key 3*", "[3 key 3*"),
        "An array with a count below -1 closes the connection; Kafka takes any negative count for null.",
        STRICT,
    ),
    # --- Produce ------------------------------------------------------------------------------------------------
    Deviation(
        ("produce.the_same_partition_twice",),
        ("*",),
        "A partition that a request names twice gets both batches, and two answers. Kafka appends the last one only.",
        TWICE,
    ),
    Deviation(
        ("produce.many_without_a_key_into_a_compacted_topic",),
        ("[1 Produce]*.record_errors*",),
        "Of the records for which a batch is refused the first 100 are named. Kafka names all.",
        LARGE_ANSWERS,
        ours="<absent>",
    ),
    Deviation(
        ("produce.no_records",),
        ("[1 Produce still waits]",),
        "Null in the place of records is INVALID_RECORD. Kafka never answers.",
        NEVER_ANSWERS,
        kafka=True,
        ours=False,
    ),
    Deviation(
        ("produce.lengths_that_lie",),
        ("[6 Produce]*.error_code",),
        "A batch that says it is longer than 2 GiB is CORRUPT_MESSAGE.",
        KAFKA_FAILS,
        kafka="UNKNOWN_SERVER_ERROR",
        ours="CORRUPT_MESSAGE",
    ),
    Deviation(
        ("produce.lengths_that_lie", "produce.older_magic"),
        ("*.error_message",),
        "CORRUPT_MESSAGE has no text. Kafka has one for a length below the smallest and an unknown magic, but not for "
        "a wrong CRC.",
        "The code says it; clients retry it without showing the text.",
        kafka="<text>",
        ours=None,
        since=8,
    ),
    Deviation(
        ("produce.offset_deltas_that_lie",),
        ("*.error_code", "*.base_offset", "*.log_start_offset"),
        "Records of a batch whose offset deltas are not 0, 1, 2... are INVALID_RECORD. Kafka appends them.",
        "Consumers of such a batch would see offsets that are not where they say.",
    ),
    Deviation(
        ("produce.a_codec_nobody_knows",),
        ("*.error_code",),
        "An unknown codec is UNSUPPORTED_COMPRESSION_TYPE.",
        KAFKA_FAILS,
        kafka="UNKNOWN_SERVER_ERROR",
        ours="UNSUPPORTED_COMPRESSION_TYPE",
    ),
    Deviation(
        ("produce.a_bad_batch_beside_a_good_one",),
        ("[4 Produce]*", "[5 Produce]*", "[6 Produce]*", "[7 Produce]*"),
        "A length below the smallest or an unknown magic refuses its partition. Kafka refuses all partitions of the "
        "request.",
        "Kafka reads all batches before it looks at any; nothing is wrong with the others.",
    ),
    Deviation(
        ("produce.a_bad_batch_beside_a_good_one",),
        ("[10 Produce]*", "[11 Produce]*"),
        "An unknown codec refuses its partition. Kafka refuses all partitions of a request before version 7.",
        KAFKA_FAILS,
    ),
    Deviation(
        ("produce.a_bad_batch_beside_a_good_one",),
        ("[12 Produce]*.error_code", "[13 Produce]*.error_code"),
        "What does not inflate is INVALID_RECORD here, too.",
        KAFKA_FAILS,
        kafka="UNKNOWN_SERVER_ERROR",
        ours="INVALID_RECORD",
    ),
    Deviation(
        ("produce.a_codec_nobody_knows",),
        ("*.log_start_offset",),
        "That answer names the log start. Kafka finds out before it has looked at the log.",
        KAFKA_FAILS,
        kafka=-1,
        ours=0,
        since=5,
        until=6,
    ),
    Deviation(
        ("produce.what_does_not_inflate",),
        ("*.error_code",),
        "A compressed batch that does not inflate is INVALID_RECORD.",
        KAFKA_FAILS,
        kafka="UNKNOWN_SERVER_ERROR",
        ours="INVALID_RECORD",
    ),
    Deviation(
        ("produce.with_sequences_of_an_ended_transaction",),
        tuple(
            f"[{step} Produce]*.{field}"
            for step in (1, 3)
            for field in ("error_code", "base_offset", "log_append_time_ms")
        ),
        "A transactional batch with the sequences of a batch whose transaction has ended is UNKNOWN_PRODUCER_ID. Kafka "
        "takes it for a duplicate and appends nothing.",
        "No producer repeats what it has ended. These are new records: librdkafka uses sequences again when it aborts "
        "while a batch without an answer waits to be sent again. Taken for a duplicate, they would be lost. "
        "After this error librdkafka aborts, takes a new epoch, and goes on.",
    ),
    Deviation(
        ("produce.more_than_may_be_inflated",),
        ("*.error_code", "*.base_offset"),
        "A batch that inflates to more than kbroker.inflated.batch.max.bytes is MESSAGE_TOO_LARGE. Kafka has no limit.",
        "A few kilobytes of zeros must not take the memory of the broker, nor of every consumer.",
    ),
    Deviation(
        ("produce.numbers_with_excess_bits",),
        ("[1 Produce]*.error_code", "[1 Produce]*.base_offset"),
        "A varint with bits beyond its number's size is INVALID_RECORD. Kafka drops the bits.",
        "Other readers do not drop them: they would see another record.",
    ),
    Deviation(
        ("produce.numbers_with_excess_bits",),
        ("[2 Produce]*.error_code",),
        "A varint of more bytes than its number can have is INVALID_RECORD.",
        KAFKA_FAILS,
        kafka="UNKNOWN_SERVER_ERROR",
        ours="INVALID_RECORD",
    ),
    Deviation(
        ("produce.names_that_are_no_text",),
        ("*key 0*",),
        "A topic whose name is not UTF-8 closes the connection. Kafka answers that one with replacement characters in "
        "its name is unknown.",
        STRICT + " Two names would become one.",
    ),
    # --- Fetch --------------------------------------------------------------------------------------------------
    Deviation(
        ("fetch.a_topic_made_again_has_another_id",),
        ("*.error_code", "*.aborted_transactions"),
        "In a session, a topic that was deleted and made again is UNKNOWN_TOPIC_OR_PARTITION. Kafka says "
        "INCONSISTENT_TOPIC_ID.",
        "The id is not that of the new topic. Clients ask for metadata after either.",
    ),
    Deviation(
        ("fetch.names_that_are_no_text",),
        ("*key 1*",),
        "A topic whose name is not UTF-8 closes the connection. Kafka answers that one with replacement characters in "
        "its name is unknown.",
        STRICT + " Two names would become one.",
    ),
    # --- ListOffsets --------------------------------------------------------------------------------------------
    Deviation(
        ("list_offsets.by_time_over_segments",),
        ("[6 ListOffsets]*",),
        "By time, right after records were deleted: the first record that is left. Kafka looks into a segment that is "
        "about to be "
        "deleted, finds nothing and answers that there is none.",
        "A group that is reset by time would go to the end of the log.",
        since=1,
    ),
    # --- Metadata -----------------------------------------------------------------------------------------------
    Deviation(
        ("metadata.a_topic_made_by*", "metadata.two_topics_made_by*"),
        ("[0 Metadata].topics[*",),
        "A topic that is made by being asked for is in the same answer, with its leaders. Kafka answers "
        "UNKNOWN_TOPIC_OR_PARTITION and makes it meanwhile. A member of a cluster answers LEADER_NOT_AVAILABLE until "
        "the controller has told it of the leaders.",
        "A broker that is alone makes it at once; the client need not ask again.",
    ),
    Deviation(
        ("metadata.topics_by_id",),
        ("*.error_code",),
        "A topic asked for by neither name nor id is INVALID_REQUEST.",
        KAFKA_FAILS,
        kafka="UNKNOWN_SERVER_ERROR",
        ours="INVALID_REQUEST",
        since=12,
    ),
    # --- groups -------------------------------------------------------------------------------------------------
    Deviation(
        ("join_group.a_protocol_twice",),
        ("*still waits]",),
        "A member that names a protocol twice is taken. Kafka never answers.",
        NEVER_ANSWERS,
        kafka=True,
        ours=False,
    ),
    Deviation(
        ("list_offsets.the_same_partition_twice",),
        ("*",),
        "A partition that a request names twice is INVALID_REQUEST, as in later versions. Kafka answers it twice.",
        LARGE_ANSWERS,
        until=0,
    ),
    Deviation(
        ("offset_fetch.of_zookeeper",),
        ("*",),
        "OffsetCommit 0 and OffsetFetch 0 store and read offsets as Kafka with a ZooKeeper does. Kafka without one "
        "answers UNSUPPORTED_VERSION, though it advertises both.",
        "Clients of Kafka 0.8.1 can commit; the nodes are there with or without a ZooKeeper.",
    ),
    Deviation(
        ("offset_commit.metadata_too_large",),
        ("*",),
        "offset.metadata.max.bytes counts bytes. Kafka counts characters.",
        "It is what the setting says, and what bounds memory.",
    ),
    Deviation(
        ("offset_fetch.several_groups",),
        ("*.groups[*#2]",),
        "A group that a request names twice for all of its offsets is answered once. Kafka answers it as often as it "
        "is named.",
        LARGE_ANSWERS,
        ours="<absent>",
    ),
    Deviation(
        ("describe_transactions.of_ids_that_are_not_there",),
        ("*.transaction_states[*#2]",),
        "A transactional id that a request names twice is answered once. Kafka answers it as often as it is named.",
        LARGE_ANSWERS,
        ours="<absent>",
    ),
    Deviation(
        ("describe_groups.a_group_of_offsets",),
        ("*.groups[*#2]",),
        "A group that a request names twice is answered once. Kafka answers it as often as it is named.",
        LARGE_ANSWERS,
        ours="<absent>",
    ),
    Deviation(
        ("offset_fetch.several_groups",),
        ("*still waits]",),
        "A request for no group has an empty answer. Kafka never answers.",
        NEVER_ANSWERS,
        kafka=True,
        ours=False,
    ),
    Deviation(
        ("find_coordinator.of_a_share_partition",),
        ("*.error_code",),
        "The coordinator of a share group's partition is INVALID_REQUEST.",
        "Share groups (KIP-932) are not served; a client need not ask again.",
        kafka="COORDINATOR_NOT_AVAILABLE",
        ours="INVALID_REQUEST",
        since=6,
    ),
    # --- transactions -------------------------------------------------------------------------------------------
    Deviation(
        ("end_txn.an_end_by_strangers", "describe_transactions.in_every_state"),
        ("*.transaction_start_time_ms",),
        "An id that has just got an epoch has no transaction that began at some time: -1, as in Kafka 4.",
        "Kafka 3.9 goes on telling that of the transaction before.",
        kafka="<now>",
        ours=-1,
    ),
    Deviation(
        ("produce.by_strangers_to_the_transaction",),
        ("[2 Produce]*", "[5 Produce]*"),
        "A batch of a newer epoch than the open transaction's is one that nobody has verified: INVALID_PRODUCER_EPOCH, "
        "as in Kafka 4.",
        "Its producer has to be known to the coordinator first (KIP-890).",
    ),
    Deviation(
        ("write_txn_markers.markers_of_old_epochs",),
        ("[4 Produce]*.log_start_offset",),
        "A batch of an epoch that a marker has ended is refused before anything else is looked at: -1, as in Kafka 4.",
        "The log's start is told of batches that were looked at.",
        kafka=0,
        ours=-1,
    ),
    Deviation(
        ("txn_offset_commit.offsets_by_strangers_to_the_transaction",),
        ("[6 OffsetFetch]*.error_code",),
        "What a transaction has committed for a group stays pending when a later commit of it is refused. Kafka "
        "forgets both, and finds the first one at its next start.",
        "The transaction was told that the first one is stored: it would be lost when it is committed.",
        kafka="NONE",
        ours="UNSTABLE_OFFSET_COMMIT",
    ),
    Deviation(
        ("add_partitions_to_txn.of_several_transactions",),
        ("*still waits]",),
        "A request for no transaction has an empty answer. Kafka never answers.",
        NEVER_ANSWERS,
        kafka=True,
        ours=False,
    ),
    # --- topics and records -------------------------------------------------------------------------------------
    Deviation(
        ("describe_topic_partitions.partitions_of_topics_that_are_not_there",),
        ("[1 DescribeTopicPartitions]*",),
        "A name that no topic can have is INVALID_TOPIC_EXCEPTION.",
        KAFKA_FAILS,
    ),
    # --- what tools ask for -------------------------------------------------------------------------------------
    Deviation(
        ("describe_quorum.quorums_named_twice",),
        ("*.topics*",),
        "A partition that is named twice is answered once.",
        LARGE_ANSWERS,
        ours="<absent>",
    ),
    Deviation(
        ("update_features.the_feature_of_transactions",),
        ("*.error_code", "*.error_message"),
        "transaction.version has the level 2, and stays there: an update to 2 succeeds, to 0 and 1 it is refused. "
        "Beside an Apache Kafka in a cluster the same holds of level 1. Kafka 3.9 has it at 0.",
        NO_FEATURES,
    ),
    Deviation(
        ("get_telemetry_subscriptions.subscriptions_asked_for_again",),
        ("[1 GetTelemetrySubscriptions].*",),
        "A client that asks again before its interval is over is answered. Kafka remembers it, and answers "
        "THROTTLING_QUOTA_EXCEEDED.",
        "There is nothing to remember: it is told each time that no metrics are wanted.",
    ),
    # --- configs ------------------------------------------------------------------------------------------------
    Deviation(
        (
            "describe_configs.a_topic",
            "describe_configs.some_configs",
            "describe_configs.some_settings*",
            "describe_configs.several_resources",
            "describe_configs.the_broker",
        ),
        ("*.is_default",),
        "In version 0 a setting that has its default value says so. Kafka 3.9 says it of none.",
        "It is what the field is for.",
        kafka=False,
        ours=True,
        until=0,
    ),
    Deviation(
        ("describe_configs.the_broker",),
        ("*.configs[num.*.value", "*.configs[group.initial.rebalance.delay.ms].synonyms*"),
        "The defaults of num.network.threads, num.io.threads, num.recovery.threads.per.data.dir and "
        "group.initial.rebalance.delay.ms.",
        OWN_DEFAULT,
    ),
    Deviation(
        ("describe_configs.the_broker",),
        ("*.configs[socket.listen.backlog.size]*.value",),
        "socket.listen.backlog.size is 4096 by default, or as much as the system allows. Kafka's is 50.",
        "Each connection that comes while as many wait costs its client a second: 5,000 opened at once took 39 s.",
    ),
    Deviation(
        ("describe_configs.the_broker",),
        ("*.configs[socket.*.buffer.bytes].value",),
        "socket.send.buffer.bytes and socket.receive.buffer.bytes are -1 by default, Kafka's are 102400.",
        "The system sizes them as a connection needs. A fixed 100 KiB costs twice the broker's CPU per byte "
        "(perf/RESULTS.md), and across a long way it is a bound on the rate.",
    ),
    Deviation(
        ("describe_configs.the_broker",),
        ("*.configs[num.*.read_only", "*.configs[advertised.listeners].read_only"),
        "Numbers of threads and listeners are read-only. Kafka changes them while it runs.",
        STATIC,
        kafka=False,
        ours=True,
    ),
    Deviation(
        ("describe_configs.the_broker",),
        (
            "*.configs.port",
            "*.configs[host.name]",
            "*.configs[advertised.host.name]",
            "*.configs[advertised.port]",
            "*.configs[enable.zookeeper]",
            "*.configs[log.flush.visibility]",
            "*.configs[add.partitions.to.txn.retry.backoff.max.ms]",
            "*.configs[producer.id.expiration.check.interval.ms]",
            "*.configs[group.consumer.*assignment.interval.ms]",
            "*.configs[group.consumer.regex.refresh.interval.ms]",
            "*.configs[group.consumer.migration.policy]",
            "*.configs[leader.replication.throttled.rate]",
            "*.configs[follower.replication.throttled.rate]",
            "*.configs[replica.alter.log.dirs.io.max.bytes.per.second]",
        ),
        "A broker has the settings that kbroker reads: not all that Kafka has, also some of older releases, and its "
        "own.",
        "What it does not read it does not claim to have; docs/CONFIG.md lists them.",
        kafka="<absent>",
    ),
    Deviation(
        ("describe_configs.the_broker",),
        ("*.configs[group.consumer.assignors].*", "*.configs[group.coordinator.rebalance.protocols].*"),
        "group.consumer.assignors is `uniform,range`, group.coordinator.rebalance.protocols `classic,consumer`. Kafka "
        "3.9 has the names of two classes, and `classic`.",
        "As Kafka 4.3, whose consumer groups are served; the classes are Kafka's own.",
    ),
    Deviation(
        ("alter_configs.configs_of_several",),
        ("*still waits]",),
        "A resource that a request names twice is INVALID_REQUEST. Kafka never answers.",
        NEVER_ANSWERS,
        kafka=True,
        ours=False,
    ),
    Deviation(
        ("incremental_alter_configs.wrong_changes",),
        ("*.error_code", "*.error_message"),
        "An operation that is none of the four is INVALID_REQUEST.",
        KAFKA_FAILS,
    ),
    *OLD_VERSIONS,
)
