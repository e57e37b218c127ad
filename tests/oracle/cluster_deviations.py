"""Where kbroker differs on purpose from Apache Kafka 3.9.1 as a member of a cluster in ZooKeeper, or as its controller.

A part of docs/DEVIATIONS.md.
"""

from __future__ import annotations

from tests.oracle.deviation import OtherDeviation

IN_CLUSTERS: tuple[OtherDeviation, ...] = (
    OtherDeviation(
        "What only KRaft controllers send",
        "`is_kraft_controller` and `type` of LeaderAndIsr, StopReplica and UpdateMetadata are not looked at.",
        "There is no KRaft here.",
        "tests/unit/replication/test_roles.py::test_a_full_request_of_a_zookeeper_controller_stops_nothing_that_it_does_not_name",
    ),
    OtherDeviation(
        "LeaderAndIsr, UpdateMetadata: the state of a single partition",
        "Its `controller_epoch`, and its `leader_recovery_state` in LeaderAndIsr, are not looked at: the controller "
        "epoch of the request counts, and a leader that recovers leads like any other. Kafka keeps both, and decides "
        "nothing by them that shows.",
        "What they say of a state is in the tree.",
        "tests/unit/replication/test_roles.py::test_neither_the_epoch_nor_the_recovery_of_a_single_partition_is_looked_at",
    ),
    OtherDeviation(
        "LeaderAndIsr: `live_leaders`",
        "Is not looked at, as in Kafka: which brokers are alive, and where they are, is told by UpdateMetadata.",
        "UpdateMetadata comes in any case, and tells of all brokers.",
        "tests/unit/replication/test_roles.py::test_the_leaders_that_a_request_for_roles_names_are_not_those_that_are_alive",
    ),
    OtherDeviation(
        "Fetch: `cluster_id` and `replica_directory_id`",
        "Are not looked at, as in a Kafka that is no member of a quorum.",
        "Only the fetches of a KRaft quorum need them.",
        "tests/unit/server/test_replica_fetch.py::test_what_only_a_quorum_looks_at_changes_nothing_for_a_follower",
    ),
    OtherDeviation(
        "AlterPartitionReassignments, ListPartitionReassignments: `timeout_ms`",
        "Is not looked at, as in Kafka in ZooKeeper mode: the answer comes when the controller has begun the changes, "
        "or found which there are.",
        "A change that was begun late is begun all the same; a time would only hide that from the client.",
        "tests/unit/server/handlers/test_partition_administration.py::"
        "test_reassignments_begin_and_are_listed_whatever_time_they_are_given",
    ),
    OtherDeviation(
        "A cluster on its way to KRaft",
        "A kbroker does not join it while `/migration` is there. A member stays one, and registers again after a lost "
        "session unless a KRaft controller has taken the cluster over.",
        "A kbroker cannot go along to KRaft.",
        "tests/unit/cluster/test_bad_nodes.py::test_a_member_comes_back_while_the_cluster_is_on_its_way_to_kraft_and_not_once_kraft_has_it",
    ),
    OtherDeviation(
        "DescribeTopicPartitions",
        "Is served, with eligible leader replicas empty. Kafka in ZooKeeper mode does not have it, and closes the "
        "connection on which it is asked.",
        "Tools get the partitions of large topics bit by bit. A member knows all that is told there.",
        "tests/oracle/test_cluster_control.py::test_a_request_between_brokers_is_answered_as_apache_kafka_answers_it",
    ),
    OtherDeviation(
        "Requests between brokers at a broker that is alone",
        "LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown, AlterPartition and AllocateProducerIds "
        "are CLUSTER_AUTHORIZATION_FAILED.",
        "Nobody may move the partitions of a broker that has no cluster.",
        "tests/unit/server/handlers/test_between_brokers.py::test_nobody_directs_a_broker_that_is_alone",
    ),
    OtherDeviation(
        "OffsetFetch at a coordinator that was replaced and has not heard of it",
        "Is NOT_COORDINATOR: the other replicas in the ISR are asked first whether they know of a newer leader. Kafka "
        "tells the offsets of before.",
        "A consumer that begins at an old offset commits its records a second time, in transactions too.",
        "tests/unit/server/test_coordinators.py::test_a_coordinator_that_has_not_heard_of_the_next_one_tells_no_old_offset",
    ),
    OtherDeviation(
        "OffsetFetch 1: an error of the whole group",
        "Stands at each partition that was asked for, as in the version's definition: NOT_COORDINATOR from a broker "
        "that is not the coordinator. Kafka names no partition then, and the client sees no error.",
        "Who sees no error takes the group for one without offsets.",
        "tests/oracle/test_cluster_control.py::test_a_request_between_brokers_is_answered_as_apache_kafka_answers_it",
    ),
    OtherDeviation(
        "Produce, Fetch, WriteTxnMarkers: a partition in a failed log directory",
        "Is NOT_LEADER_OR_FOLLOWER for producers and consumers, since a member has no role in it any more, and "
        "KAFKA_STORAGE_ERROR for markers. Kafka says KAFKA_STORAGE_ERROR, and UNKNOWN_TOPIC_OR_PARTITION for markers.",
        "Clients and coordinators do the same about either: they ask who leads, and try again.",
        "tests/oracle/test_cluster_control.py::test_a_request_between_brokers_is_answered_as_apache_kafka_answers_it",
    ),
    OtherDeviation(
        "Fetch: an offset behind the end of a leader's log",
        "Is NOT_LEADER_OR_FOLLOWER for a consumer where there are other replicas, until those in the ISR have said "
        "that they know of no newer leader; then it is OFFSET_OUT_OF_RANGE. The same holds for OffsetForLeaderEpoch "
        "with a newer epoch than the leader's. Kafka answers at once.",
        "A leader that was replaced and has not heard of it would send readers of its successor back to their "
        "auto.offset.reset.",
        "tests/unit/server/test_replaced_leaders.py::test_a_leader_that_was_replaced_and_not_told_sends_no_reader_back",
    ),
    OtherDeviation(
        "A broker that was killed",
        "Is taken for dead by the controller as soon as a connection to it breaks and its port refuses, and a "
        "controller is deposed by whoever sees that. Kafka waits for the end of the session.",
        "The gap is a part of a second in place of many seconds; REPLICATION.md says why this is safe.",
        "tests/unit/cluster/test_controller_requests.py::test_a_broker_whose_port_refuses_is_replaced_before_its_session_ends",
    ),
    OtherDeviation(
        "The controller: what brokers are told",
        "Requests that wait behind another one for the same broker are put together, so a state that a later one "
        "replaces may never be told. Kafka sends each.",
        "A broker that is slow gets one request in place of thousands.",
        "tests/oracle/test_cluster_control.py::test_a_controller_tells_brokers_what_apache_kafka_tells_them",
    ),
    OtherDeviation(
        "AlterConfigs, DescribeConfigs: while ZooKeeper is away",
        "A change is KAFKA_STORAGE_ERROR after zookeeper.session.timeout.ms, and what the broker knows is told. Kafka "
        "answers neither before ZooKeeper is back. Topics that are made, grown and deleted wait for it at both.",
        "The client is told what is wrong.",
        "tests/unit/server/test_zookeeper_is_away.py::"
        "test_while_zookeeper_is_away_changes_are_refused_or_wait_and_all_else_goes_on",
    ),
    OtherDeviation(
        "The controller: a broker without the inter-broker listener",
        "Is not used: its replicas count as offline, with a line in the log. In Kafka the controller fails at "
        "every change of brokers from then on.",
        "One wrong setting must not stop a cluster.",
        "tests/unit/cluster/test_controller_requests.py::test_a_broker_without_the_listener_of_brokers_is_not_used",
    ),
    OtherDeviation(
        "AlterPartition: who may be in an ISR",
        "Only the leader is obeyed, only replicas of the partition may be in it, and only in the life in which "
        "they have fetched (KIP-903): leaders send the broker epochs, and the controller compares them. It looks at "
        "the members' registrations once more before it writes. A change of another broker, or with who is no replica "
        "or nobody, is INVALID_REQUEST. Kafka in ZooKeeper mode, where epochs are -1, looks only at whether the "
        "brokers are registered: one that is not is INELIGIBLE_REPLICA. So is a replica here that a reassignment "
        "removes, while the removal waits for its turn among many.",
        "A replica that came back with an empty disk must not be let in by what it had before.",
        "tests/unit/cluster/test_controller_requests.py::test_a_replica_of_a_former_life_is_not_let_in",
    ),
    OtherDeviation(
        "Fetch: a follower of an earlier life",
        "Whose broker epoch is lower than one with which that broker has fetched from this leader is answered "
        "NOT_LEADER_OR_FOLLOWER, as in KRaft. Kafka in ZooKeeper mode does not compare them.",
        "What came late from before a restart must not count as replicated.",
        "tests/unit/server/test_replica_fetch.py::"
        "test_a_fetch_of_an_earlier_life_of_a_follower_is_refused_and_does_not_count",
    ),
    OtherDeviation(
        "CreateTopics with an assignment",
        "One that names a broker which is not registered, or a partition without replicas, is "
        "INVALID_REPLICA_ASSIGNMENT, as in KRaft. Kafka in ZooKeeper mode makes such a topic; the partition without "
        "replicas never has a leader.",
        "A slip in a number is better told at once.",
        "tests/unit/server/test_members_in_zookeeper.py::test_topics_that_cannot_be_placed_are_refused_and_others_are_made",
    ),
    OtherDeviation(
        "The controller: brokers that came back while there was none",
        "A new controller puts out of an ISR who has registered since it was written, unless all of its members that "
        "are online have; also who is no replica. A leader that has come back, and leads on, does so in a new leader "
        "epoch. Kafka leaves them there, and may leave the lead with one of them, in the same epoch.",
        "A power cut or a new disk may have taken records from it. Records that it writes in the same epoch in their "
        "place could not be told from them.",
        "tests/unit/cluster/test_controller.py::test_a_leader_that_came_back_while_there_was_no_controller_does_not_lead_on",
    ),
    OtherDeviation(
        "The controller: a topic that is deleted while its replicas move",
        "The deletion ends the reassignment. In Kafka it waits for the reassignment.",
        "Nobody wants replicas of a topic that goes.",
        "tests/unit/cluster/test_controller_requests.py::test_a_deletion_ends_the_moves_of_its_topic",
    ),
    OtherDeviation(
        "AlterPartitionReassignments: a cancel that no replica in sync would survive",
        "Is refused with INVALID_REPLICA_ASSIGNMENT, as in KRaft. Kafka in ZooKeeper mode carries it out.",
        "All that was acknowledged would be gone.",
        "tests/unit/cluster/test_controller_requests.py::test_a_reassignment_is_not_cancelled_that_has_moved_the_isr",
    ),
    OtherDeviation(
        "Joining",
        "A start is refused if the broker lacks a listener that all others have, if others lack its inter-broker or "
        "control-plane listener, if one of its addresses is another broker's, or if its address for brokers is one "
        "that only its own machine reaches and another broker's is not. Kafka looks only at whose addresses they are. "
        "A member that registers again after a lost session looks at the listeners alone, and only says what is wrong.",
        "A wrong registration harms the whole cluster.",
        "tests/unit/cluster/test_membership.py::test_a_missing_inter_broker_listener_is_refused_before_the_registration",
    ),
    OtherDeviation(
        "A registration that somebody removed",
        "Is made again at once, with a new broker epoch. A Kafka stays away until its next start.",
        "It was a mistake.",
        "tests/unit/cluster/test_membership.py::test_a_registration_that_somebody_removes_is_made_again",
    ),
    OtherDeviation(
        "Nodes: /brokers/ids",
        "A kbroker's has a field `kbroker` with its version, by which kbrokers know each other. Kafka does not "
        "read it.",
        "Among kbrokers more is served than Kafka 3.9 can.",
        "tests/unit/cluster/test_membership.py::test_a_second_broker_is_noticed_and_a_kafka_is_none_of_ours",
    ),
    OtherDeviation(
        "Nodes: /config/groups",
        "Settings of consumer groups (KIP-848) stand there, in a cluster of kbrokers only. Kafka in ZooKeeper "
        "mode has none.",
        "As Kafka 4.3 has them in KRaft.",
        "tests/unit/cluster/test_shared_topics.py::test_groups_have_configs_only_among_kbrokers",
    ),
    OtherDeviation(
        "Client quotas: /config/clients, /config/users, /config/ips",
        "Are not enforced yet: no client is throttled where it talks to a kbroker. One line in the log says so when a "
        "member joins a cluster that has some, or when the first of a kind is set. A Kafka throttles its own clients.",
        "There is no throttling yet, and a cluster with quotas can be moved broker by broker all the same.",
        "tests/unit/server/test_members_in_zookeeper.py::"
        "test_quotas_that_are_not_enforced_are_told_when_they_are_set_and_when_a_member_joins",
    ),
    OtherDeviation(
        "Internal topics in a small cluster",
        "Their replication factor is the number of brokers, where that is smaller and the setting is not given. "
        "Kafka does not make the topic before there are as many brokers as the setting says.",
        "One broker with a ZooKeeper works without settings, as one without.",
        "tests/unit/cluster/test_shared_topics.py::test_internal_topics_are_sized_to_the_cluster_unless_their_size_was_given",
    ),
    OtherDeviation(
        "Consumer groups (KIP-848) when a Kafka joins",
        "Their members are removed at once, with a line in the log, and are told UNSUPPORTED_VERSION. Offsets stay. "
        "Kafka in ZooKeeper mode has no such groups.",
        "A Kafka that becomes their coordinator would skip their records.",
        "tests/unit/groups/test_consumer_groups.py::test_groups_end_when_a_kafka_joins_and_classic_members_go_on_at_once",
    ),
    OtherDeviation(
        "Followers: offsets and epochs that leap",
        "A batch behind a gap of offsets, or of a newer epoch, is appended only when the next batch follows on, or "
        "when it comes again as the first of an answer. Kafka believes the leader.",
        "No CRC covers the first 12 bytes of a batch: one flipped bit at the leader would be copied to all replicas.",
        "tests/unit/storage/test_append_as_follower.py::test_a_batch_that_leaps_is_appended_only_if_the_next_one_follows_on",
    ),
    OtherDeviation(
        "LeaderAndIsr: a leader that the metadata does not know",
        "The broker follows, without a leader to fetch from, in the epoch that it was told; it begins to fetch when "
        "UpdateMetadata tells of the leader. Kafka makes the log, and keeps the role and the epoch that it had. So "
        "StopReplica of an older epoch is then FENCED_LEADER_EPOCH here.",
        "A broker that leads no more stops at once to take records that nobody would keep.",
        "tests/unit/replication/test_roles.py::test_a_leader_that_the_metadata_does_not_know_is_fetched_from_once_it_does",
    ),
    OtherDeviation(
        "Metadata, DescribeTopicPartitions: a topic that a member has not been told of yet",
        "Is LEADER_NOT_AVAILABLE, if it was in the tree when the broker started. From a Kafka that has just started it "
        "is UNKNOWN_TOPIC_OR_PARTITION.",
        "There is such a topic, and some clients give up when they are told that there is none.",
        "tests/unit/server/handlers/test_metadata.py::"
        "test_a_topic_that_the_controller_has_not_told_of_yet_is_not_missing",
    ),
    OtherDeviation(
        "LeaderAndIsr: topic ids",
        "A replica that this broker has not any more, by UpdateMetadata or because the topic is not in ZooKeeper, is "
        "stopped. When a topic of the same name gives this broker a role, the log that was left is deleted. In Kafka "
        "the replica goes on, and the new topic's role is INCONSISTENT_TOPIC_ID.",
        "The broker was away when it should have been told to stop; nobody tells it later.",
        "tests/unit/replication/test_roles.py::"
        "test_a_topic_that_was_made_again_while_this_broker_was_away_gets_its_log",
    ),
    OtherDeviation(
        "LeaderAndIsr: a topic that gets an id",
        "A log that was made without a topic id takes roles of a topic with one, but has the id only from the broker's "
        "next start on. Until then a Fetch by id does not find it. In Kafka the log gets the id at once.",
        "A topic has no id only if a tool from before Kafka 2.8 has written it into ZooKeeper, and only until a "
        "controller gives it one.",
        "tests/unit/storage/test_log_manager.py::test_a_log_is_that_of_a_topic_whose_id_is_not_known",
    ),
    OtherDeviation(
        "LeaderAndIsr, UpdateMetadata: what cannot be",
        "A role in a partition with an impossible name or a negative number is INVALID_TOPIC_EXCEPTION. UpdateMetadata "
        "passes over partitions with such names, and over numbers that would leave too many gaps; a security protocol "
        "that nobody knows is INVALID_REQUEST. Kafka takes the names and numbers as they are.",
        "A name becomes a directory, and a number the length of a list.",
        "tests/unit/replication/test_roles.py::"
        "test_a_role_in_a_partition_that_cannot_be_makes_no_log_and_the_others_are_taken",
    ),
    OtherDeviation(
        "LeaderAndIsr: a disk that refuses a role",
        "Only the failure of the log's directory keeps a replica offline. A role that a full disk refused may be told "
        "again in the same epoch, and the broker asks the controller for its roles once there is room. Kafka refuses "
        "both until its next start.",
        "The controller does not tell a role again by itself; a full disk is a matter of minutes.",
        "tests/unit/replication/test_roles.py::test_roles_are_asked_for_again_when_the_disk_that_refused_one_has_room",
    ),
    OtherDeviation(
        "Produce: batches behind one that was refused",
        "For a minute after a batch was refused for too few in-sync replicas, or by the disk, a batch of an idempotent "
        "producer that does not follow on is refused for the same reason. Kafka says OUT_OF_ORDER_SEQUENCE_NUMBER if "
        "the ISR has grown between the two; a failed disk takes its log offline.",
        "The first batch comes again. librdkafka answers OUT_OF_ORDER_SEQUENCE_NUMBER with a new epoch, in which it "
        "sends again what other partitions may have stored already.",
        "tests/unit/storage/test_roles.py::"
        "test_what_was_sent_behind_a_batch_that_too_few_replicas_refused_is_refused_for_them_too",
    ),
    OtherDeviation(
        "DescribeConfigs: flush.messages of a topic with more than one replica",
        "Is 1, fsync before each acknowledgement, where no flush policy is set for the topic or the brokers. Kafka "
        "leaves it to the operating system.",
        "With it kbroker is still faster than Kafka without it, and a power cut at all brokers at once loses nothing.",
        "tests/unit/server/test_members_in_zookeeper.py::"
        "test_topics_with_more_than_one_replica_are_flushed_before_acks_unless_a_policy_is_set",
    ),
    OtherDeviation(
        "LeaderAndIsr: a replica that lacks committed records",
        "Is declined with KAFKA_STORAGE_ERROR while this broker is in the ISR: recovery has cut below the last high "
        "watermark, a batch is damaged, or the log is gone. The controller elects another member, and gives the ISR "
        "back of which only this replica was left. Then the replica follows and fetches what it lacks. Kafka leads.",
        "Committed records would be gone although another replica has them.",
        "tests/unit/server/test_damaged_replicas.py::"
        "test_a_damaged_broker_that_is_the_first_to_start_leaves_the_lead_to_those_that_have_everything",
    ),
    OtherDeviation(
        "AlterPartition: a change of the ISR whose answer was lost",
        "Is settled by UpdateMetadata of the same leader epoch and a later partition epoch too. In Kafka a leader that "
        "was answered INVALID_UPDATE_VERSION waits for LeaderAndIsr, which may never come.",
        "The controller alone writes states, so a later one of the same leader epoch is the committed one.",
        "tests/unit/replication/test_in_sync_changes.py::test_a_proposal_whose_answer_was_lost_is_settled_by_the_metadata",
    ),
    OtherDeviation(
        "Markers: the epoch of their coordinator",
        "Is the leader epoch that the partition of `__transaction_state` has then. A coordinator of Kafka keeps the "
        "one in which it began to lead, though another begins whenever a broker has gone from the ISR.",
        "The coordinator writes its records in that epoch too, and the next coordinator has a higher one in any case.",
        "tests/oracle/test_cluster_tree.py::test_a_history_leaves_the_same_nodes_and_the_same_bytes",
    ),
    OtherDeviation(
        "Internal topics: bytes",
        "Values of `__transaction_state` have version 1, as in Kafka 4.3, and batches without a producer have the "
        "sequence -1. Kafka 3.9 writes version 0, and reads both; its sequence there is 0.",
        "Version 1 has a field for transactions of version 2; nobody reads a sequence without a producer.",
        "tests/oracle/test_cluster_tree.py::test_a_history_leaves_the_same_nodes_and_the_same_bytes",
    ),
)
