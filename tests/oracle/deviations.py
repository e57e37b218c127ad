"""Where kbroker differs from Apache Kafka on purpose: the table that `test_answers.py` compares with, and docs/DEVIATIONS.md.

A difference that is not listed here fails its test, and so does a listed one that is not there any more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kbroker.protocol.api import ApiKey
from tests.oracle.answers import Tree


def matches(pattern: str, text: str) -> bool:
    """Whether a text is a pattern's, where `*` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


@dataclass(frozen=True)
class Anything:
    """Any value at all."""


ANYTHING = Anything()


@dataclass(frozen=True)
class Deviation:
    """One way of differing: where it shows, what it is, why it is so."""

    scenarios: tuple[str, ...]
    paths: tuple[str, ...]
    what: str
    why: str
    kafka: Tree = ANYTHING
    ours: Tree = ANYTHING
    since: int = 0
    until: int = 99

    @property
    def api(self) -> ApiKey:
        return ApiKey[self.scenarios[0].split(".")[0].upper()]

    def is_about(self, scenario: str, version: int) -> bool:
        return self.since <= version <= self.until and any(matches(one, scenario) for one in self.scenarios)

    def covers(self, path: str, kafka: Tree, ours: Tree) -> bool:
        return (
            any(matches(one, path) for one in self.paths)
            and (isinstance(self.kafka, Anything) or self.kafka == kafka)
            and (isinstance(self.ours, Anything) or self.ours == ours)
        )


TWICE = "A client that names a partition twice in a request has a bug; kbroker does what each entry says, in order, and answers each."
KAFKA_FAILS = "Kafka fails inside; kbroker says what is wrong with the request."
NEVER_ANSWERS = "Kafka fails inside and leaves the client without an answer until its request times out."
NO_TRANSACTIONS = "Transactions are not served yet: their users get an error that is not retried, instead of waiting for ever."
NO_FEATURES = "Features are those of KRaft's metadata log, which kbroker does not have."
STRICT = "What a field cannot mean is refused with its connection, rather than guessed at."
OLD_FORMATS = "Needs the message formats of before Kafka 0.11, which kbroker does not convert yet."
STATIC = "These settings are read at start only."
OWN_DEFAULT = "A default of its own: for one machine, not for a cluster of them."

DEVIATIONS: tuple[Deviation, ...] = (
    # --- ApiVersions and whatever comes before an API -----------------------------------------------------------
    Deviation(
        ("api_versions.what_is_served", "api_versions.several_times*", "api_versions.names_of_software", "api_versions.bytes_behind*"),
        ("*.api_keys[1].min_version", "*.api_keys[8].min_version", "*.api_keys[9].min_version"),
        "Fetch is served from version 4, OffsetCommit from 2, OffsetFetch from 1; Kafka 3.9 serves them from 0. "
        "Produce 0 to 2 is advertised and answered with UNSUPPORTED_VERSION.",
        "Fetch and Produce: " + OLD_FORMATS + " OffsetCommit 0 and 1 and OffsetFetch 0: ZooKeeper's offsets, and a field that was "
        "dropped; Kafka 4 starts at the same versions.",
        kafka=0,
    ),
    Deviation(
        ("api_versions.what_is_served", "api_versions.several_times*", "api_versions.names_of_software", "api_versions.bytes_behind*"),
        ("*.supported_features[*", "*.finalized_features[*", "*.finalized_features_epoch"),
        "No features are reported, and the epoch of features is -1.",
        NO_FEATURES,
        since=3,
    ),
    Deviation(
        ("api_versions.several_times*", "api_versions.bytes_behind*"),
        ("*.supported_features[*", "*.finalized_features[*", "*.finalized_features_epoch"),
        "No features are reported, whatever was asked for before on the connection.",
        NO_FEATURES,
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
        "CORRUPT_MESSAGE has no text. Kafka has one for a length below the smallest and an unknown magic, but not for a wrong CRC.",
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
        ("produce.timestamps_out_of_range",),
        ("*.record_errors[*",),
        "Timestamps out of the topic's bounds: the batch is refused as a whole, without the list of the records that are wrong.",
        "Bounds are checked on the oldest and newest timestamp of a batch, which the walk over its records finds anyway.",
        ours="<absent>",
        since=8,
    ),
    Deviation(
        (
            "produce.duplicates_of_the_last_five",
            "produce.sequences_wrap",
            "produce.sequences_belong_to_partitions",
            "produce.a_duplicate_without_waiting_for_all",
            "produce.records_that_are_gone*",
        ),
        ("*.log_append_time_ms",),
        "The answer to a duplicate has no append time (-1) unless the topic has LogAppendTime. Kafka gives the batch's largest timestamp.",
        "The same answer as to the batch itself: a producer takes it for the time at which the broker appended.",
        ours=-1,
    ),
    Deviation(
        ("produce.a_transactional_id_without_a_transaction",),
        ("[1 Produce]*",),
        "A batch of a transaction is INVALID_TXN_STATE. Kafka finds that the producer id is not the transactional id's first.",
        NO_TRANSACTIONS,
    ),
    # --- Fetch --------------------------------------------------------------------------------------------------
    Deviation(
        ("fetch.the_same_partition_twice",),
        ("*",),
        "A partition that a request names twice is answered twice. Kafka answers the last one only.",
        TWICE,
    ),
    Deviation(
        ("fetch.limits_of_a_response",),
        ("[6 Fetch]*",),
        "A negative max_bytes is an error of every partition. Kafka gives it to the first and reads the others as if it were 0.",
        STRICT,
    ),
    Deviation(
        ("fetch.epochs_that_diverge",),
        ("[2 Fetch]*", "[3 Fetch]*", "[4 Fetch]*"),
        "The epoch of the record that was fetched last is not looked at.",
        "Only followers send it, and there are none yet.",
    ),
    Deviation(
        ("fetch.a_topic_made_again_has_another_id",),
        ("*.error_code", "*.aborted_transactions"),
        "In a session, a topic that was deleted and made again is UNKNOWN_TOPIC_OR_PARTITION. Kafka says INCONSISTENT_TOPIC_ID.",
        "The id is not that of the new topic. Clients ask for metadata after either.",
    ),
    # --- ListOffsets --------------------------------------------------------------------------------------------
    Deviation(
        ("list_offsets.by_time_over_segments",),
        ("[6 ListOffsets]*",),
        "By time, right after records were deleted: the first record that is left. Kafka looks into a segment that is about to be "
        "deleted, finds nothing and answers that there is none.",
        "A group that is reset by time would go to the end of the log.",
        since=1,
    ),
    # --- Metadata -----------------------------------------------------------------------------------------------
    Deviation(
        ("metadata.a_topic_made_by*", "metadata.two_topics_made_by*"),
        ("[0 Metadata].topics[*",),
        "A topic that is made by being asked for is in the same answer, with its leaders. Kafka answers UNKNOWN_TOPIC_OR_PARTITION "
        "and makes it meanwhile.",
        "One machine makes it at once; the client need not ask again.",
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
        ("offset_fetch.a_partition_asked_for_twice",),
        ("*",),
        "A partition that a request names twice is answered twice. Kafka 3.9 answers it once.",
        TWICE,
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
        ("find_coordinator.of_a_transaction",),
        ("*",),
        "The coordinator of a transactional id is INVALID_REQUEST.",
        NO_TRANSACTIONS,
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
    Deviation(
        ("init_producer_id.a_transactional_id",),
        ("*",),
        "InitProducerId with a transactional id is INVALID_REQUEST.",
        NO_TRANSACTIONS,
    ),
    # --- topics and records -------------------------------------------------------------------------------------
    Deviation(
        ("delete_records.of_a_partition_twice",),
        ("*",),
        "A partition that a request names twice is cut twice and answered twice. Kafka takes the last one only.",
        TWICE,
    ),
    Deviation(
        ("describe_topic_partitions.partitions_of_topics_that_are_not_there",),
        ("[1 DescribeTopicPartitions]*",),
        "A name that no topic can have is INVALID_TOPIC_EXCEPTION.",
        KAFKA_FAILS,
    ),
    # --- configs ------------------------------------------------------------------------------------------------
    Deviation(
        ("describe_configs.a_topic", "describe_configs.some_configs", "describe_configs.some_settings*", "describe_configs.several_resources", "describe_configs.the_broker"),
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
        "The defaults of num.network.threads, num.io.threads, num.recovery.threads.per.data.dir and group.initial.rebalance.delay.ms.",
        OWN_DEFAULT,
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
            "*.configs[log.flush.visibility]",
            "*.configs[producer.id.expiration.check.interval.ms]",
        ),
        "A broker has the settings that kbroker reads: not all that Kafka has, also some of older releases, and its own.",
        "What it does not read it does not claim to have; docs/CONFIG.md lists them.",
        kafka="<absent>",
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
)
