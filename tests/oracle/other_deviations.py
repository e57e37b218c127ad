"""Where kbroker differs from Apache Kafka on purpose in ways that no answer shows: a part of docs/DEVIATIONS.md.

A difference in the files or in ZooKeeper's nodes that is not listed here fails its test.
"""

from __future__ import annotations

from tests.oracle.deviation import KAFKA_FAILS, LARGE_ANSWERS, OtherDeviation

OTHERS: tuple[OtherDeviation, ...] = (
    OtherDeviation(
        "Fetch 0 to 3: how much is converted at once",
        "An answer holds whole messages only, of at most 8 MiB of the log, or of one "
        "batch that is larger. Kafka cuts the "
        "last message, or adds bytes, so that an answer has as many bytes as the log has.",
        "Memory is bounded, whatever is asked for; the client comes again for the rest.",
        "tests/oracle/test_answers.py::test_kbroker_answers_as_kafka_does",
    ),
    OtherDeviation(
        "APIs and versions",
        "An API or a version that Kafka 3.9 serves and kbroker does not closes the connection, as one that nobody "
        "serves, "
        "with one line in the log that names the peer, the API and the version. docs/PROTOCOL.md lists what is served.",
        "As Kafka does with what it does not serve; clients see it in ApiVersions before.",
        "tests/oracle/test_old_versions.py::test_what_kafka_serves_and_kbroker_does_not_closes_the_connection",
    ),
    OtherDeviation(
        "Numbers of elements",
        "A request with more than 1,048,576 array elements closes the connection; in Produce and Fetch only partitions "
        "are counted. Kafka has no limit but the size of the request.",
        "Each takes many times the memory that it takes in the request.",
        "tests/unit/server/test_processors.py::test_more_partitions_than_there_can_be_take_no_memory_for_long",
    ),
    OtherDeviation(
        "How large an answer may be",
        "kbroker.response.max.bytes bounds it, but for Fetch. Who asks for more is told INVALID_REQUEST where the API "
        "can say it, else the connection is closed. Kafka has no limit.",
        LARGE_ANSWERS,
        "tests/unit/server/test_answer_size.py::test_an_answer_over_the_limit_is_the_apis_error_before_its_memory_is_taken",
    ),
    OtherDeviation(
        "DescribeProducers, OffsetFetch 0 and 8: the same partition named again and again",
        "Is answered once. Kafka answers it as often as it is named.",
        LARGE_ANSWERS,
        "tests/unit/server/test_answer_size.py::test_what_is_named_again_and_again_is_told_once",
    ),
    OtherDeviation(
        "WriteTxnMarkers: the same marker for a partition again and again",
        "Is written once. Kafka writes one for each entry of the request.",
        "Each takes twenty times its bytes in the log.",
        "tests/unit/server/test_answer_size.py::test_a_marker_that_is_asked_for_again_and_again_is_written_once",
    ),
    OtherDeviation(
        "WriteTxnMarkers: an error that Kafka's coordinator does not know",
        "Is NOT_LEADER_OR_FOLLOWER, after which the sender asks who leads and tries again: UNKNOWN_SERVER_ERROR, for "
        "one. Kafka passes each code on.",
        "Its coordinator fails inside at a code that it does not know, and the transaction does not end.",
        "tests/unit/server/handlers/test_transactions.py"
        "::test_a_marker_that_fails_in_an_unknown_way_is_one_that_the_coordinator_tries_again",
    ),
    OtherDeviation(
        "DescribeConfigs for the same keys of the same resource again and again",
        "Is answered once. Kafka answers it as often as it is asked.",
        LARGE_ANSWERS,
        "tests/unit/server/handlers/test_configs.py::test_the_same_that_is_asked_twice_is_answered_once",
    ),
    OtherDeviation(
        "Produce from version 8 on: KAFKA_STORAGE_ERROR",
        "Comes with a text where the log directory is full or offline. Kafka has none.",
        "A producer can tell its user that the disk is full, rather than that nothing was delivered.",
        "tests/unit/server/test_full_disk.py::test_producers_and_whoever_asks_are_told_that_the_disk_is_full_until_it_is_not",
    ),
    OtherDeviation(
        "Produce: a transactional producer of which only a marker is left",
        "Is UNKNOWN_PRODUCER_ID where the log has lost its beginning, as a replica's that began behind the producer's "
        "records. Kafka says OUT_OF_ORDER_SEQUENCE_NUMBER, as if a record were missing.",
        "Nobody can tell there whether one is. Clients count anew, or abort the transaction and go on; the other error "
        "ends a producer of librdkafka.",
        "tests/unit/storage/test_transactions.py"
        "::test_a_producer_of_which_a_marker_alone_is_left_is_unknown_where_the_log_has_lost_its_beginning",
    ),
    OtherDeviation(
        "SIGHUP",
        "Has the broker read its settings again, and never ends it. It ends a Kafka, as any JVM.",
        "Service managers reload by it.",
        "tests/unit/cli/test_start.py::test_sighup_takes_the_settings_that_may_change_and_says_what_needs_a_restart",
    ),
    OtherDeviation(
        "Log directories with files of somebody else",
        "Are refused where nothing in them is a broker's. Kafka begins to write there.",
        "It was a slip, such as `--data /usr`.",
        "tests/unit/server/test_found_logs.py::test_a_directory_of_somebody_else_is_refused_and_left_as_it_is",
    ),
    OtherDeviation(
        "A full disk: what is deleted",
        "Goes at once where appends were refused for lack of space, and a topic's changed settings are looked at at "
        "once. Kafka waits for file.delete.delay.ms and for the next check of retention, and its log directory goes "
        "offline when it is full.",
        "Somebody waits for the room.",
        "tests/unit/server/test_full_disk.py::test_a_shorter_retention_is_taken_with_no_byte_left_and_makes_room",
    ),
    OtherDeviation(
        "TLS, SASL and access control",
        "Not served yet: a listener with another protocol than PLAINTEXT is refused at the start, and everybody who "
        "reaches the broker may do everything. SaslHandshake and SaslAuthenticate answer as those of Kafka do on a "
        "PLAINTEXT listener.",
        "A broker that did without what it was told to ask for would be open without anybody knowing.",
        "tests/unit/config/test_broker_config.py::test_a_malformed_value_is_refused_with_place_and_what_is_allowed",
    ),
    OtherDeviation(
        "Fetch sessions",
        "One cache holds them all, and its rules of who has to go hold for all. Kafka 3.9 divides the slots among "
        "eight caches that new sessions go to in turn, full or not.",
        "A slot is free for whoever comes, whichever id he gets.",
        "tests/oracle/test_fetch_session_slots.py::test_a_slot_is_free_for_whoever_comes",
    ),
    OtherDeviation(
        "Fetch sessions: how large they are",
        "A session has at most 10,000 partitions, all of them together 100 for each slot of the cache, and no topic "
        "with a name that no topic can have. Who asks for more gets none, as where the cache is full; one that grows "
        "beyond it ends (FETCH_SESSION_ID_NOT_FOUND). Those of a connection that was closed are evicted first, however "
        "young. Kafka counts sessions only.",
        "What stays of a request is bounded, and each fetch of a session looks at all its partitions.",
        "tests/unit/server/test_fetch_costs.py::test_a_session_has_a_bounded_number_of_partitions",
    ),
    OtherDeviation(
        "Fetch sessions: a host that has more than half of them",
        "Where there is no room, such a host (of the slots, or of the partitions in sessions) takes only the place of "
        "its own sessions, and another host takes the one of it that was silent for longest, however young. In Kafka "
        "whoever fills the cache first keeps it as long as it uses it.",
        "One host would have every other fetch without a session.",
        "tests/unit/server/test_fetch.py::"
        "test_a_host_with_more_than_half_of_the_sessions_gives_to_the_others_and_takes_only_its_own",
    ),
    OtherDeviation(
        "Fetch: what one answer does not look for",
        "Once there is something to send, partitions whose offsets take very much reading to find get no records in "
        "this answer, nor do those whose aborted transactions fetch.max.bytes has no room for (sixteen bytes each). A "
        "read that overlaps with more than 65,536 aborted transactions is one batch long. More than 1,000 partitions "
        "that are not known are a reason not to wait. Kafka bounds none of these.",
        "The work and the memory of one request are bounded; the client comes again for the rest.",
        "tests/unit/server/test_fetch_costs.py::"
        "test_aborted_transactions_are_told_of_as_many_partitions_as_an_answer_has_room_for",
    ),
    OtherDeviation(
        "Consumer groups (KIP-848): when a target assignment is made",
        "At the next heartbeat after a change, as often as there is one: group.consumer.assignment.interval.ms is 0. "
        "Kafka's default is 1000, and it is changed while the broker runs; here only for single groups.",
        "Who comes or goes is not waited for; a large group that starts all at once may be given an interval.",
        "tests/unit/rules/test_consumer_group.py::test_targets_are_made_no_more_often_than_is_set",
    ),
    OtherDeviation(
        "Consumer groups (KIP-848): upgrade of a group whose assignments carry data of the assignor",
        "Goes on where the assignor is range, roundrobin, sticky or cooperative-sticky. Kafka refuses it, and with it "
        "groups of librdkafka's sticky assignor once they have rebalanced.",
        "What these note there is for their own next assignment, and there is none.",
        "tests/unit/groups/test_migration.py::test_data_of_an_assignor_stops_an_upgrade_unless_it_is_of_no_more_use",
    ),
    OtherDeviation(
        "Consumer groups (KIP-848): the hash of the topics in their records",
        "Is another function than Kafka's. Who takes over the other's log finds it changed once, and assigns anew.",
        "It is compared with the broker's own only.",
        "tests/unit/groups/test_consumer_records.py::test_a_group_that_kafka_wrote_goes_on_in_its_next_epoch",
    ),
    OtherDeviation(
        "Consumer groups (KIP-848): commits to a group that is not there",
        "Of somebody who says which member it is: OffsetCommit 9 is ILLEGAL_GENERATION as in older versions, "
        "TxnOffsetCommit UNKNOWN_MEMBER_ID, as in Kafka 3.9 without such groups. Kafka 4.3 has GROUP_ID_NOT_FOUND and "
        "ILLEGAL_GENERATION.",
        "Nobody knows which protocol it speaks; members of the classic one know these, and join anew.",
        "tests/unit/groups/test_consumer_groups.py::test_who_commits_to_a_group_that_is_gone_is_told_so_as_before",
    ),
    OtherDeviation(
        "Consumer groups (KIP-848): patterns",
        "One of more than 4,096 characters, or for which RE2 needs more than 1 MiB, is refused with "
        "INVALID_REGULAR_EXPRESSION, and one that needs more than 5 s of a CPU matches nothing. Kafka has no such "
        "limits. What is wrong with a pattern is said in the words of RE2, not of RE2/J. Captures may share a name.",
        "A pattern must not stall the broker. RE2/J is for Java.",
        "tests/unit/rules/test_topic_regex.py::test_what_is_too_large_is_refused",
    ),
    OtherDeviation(
        "Groups: settings",
        "Those of consumer groups only (KIP-848), none of share and streams groups, and one with blanks around it is a "
        "number. Kafka 4.3 takes it for one when it is set, but does not use it.",
        "Those other groups are not served; a setting that is accepted should have effect.",
        "tests/unit/server/handlers/test_configs.py::test_a_group_is_described_whether_there_is_one_or_not",
    ),
    OtherDeviation(
        "min.insync.replicas among the dynamic defaults of all brokers",
        "Is there only once somebody has set it. Kafka 4.3 sets it itself where eligible leader replicas are switched "
        "on (KIP-966), with the value that the brokers had.",
        "Nothing here depends on its being the same on all brokers, and what nobody has set says so.",
        "tests/unit/server/handlers/test_configs.py::test_nothing_is_set_for_all_brokers_until_somebody_does",
    ),
    OtherDeviation(
        "max.connections",
        "Further connections are closed at once. Kafka lets them wait until one closes.",
        "A client that is told no can try another broker.",
        "tests/unit/server/test_acceptor.py::test_a_limit_on_all_connections_turns_the_next_one_away_until_one_closes",
    ),
    OtherDeviation(
        "Order of answers",
        "Topics, partitions and groups are in the order of the request, of joining, or of names. In Kafka they are in "
        "that of "
        "a hash table.",
        "It can be foreseen.",
        "tests/oracle/test_order.py::test_topics_and_partitions_are_answered_in_the_order_of_the_request",
    ),
    OtherDeviation(
        "flush.ms of a topic",
        "Holds by itself. In Kafka it does nothing unless log.flush.scheduler.interval.ms is set, too.",
        "Who sets it means it.",
        "tests/unit/server/test_log_options.py::test_flush_ms_of_a_topic_holds_without_the_interval_of_the_scheduler",
    ),
    OtherDeviation(
        "FindCoordinator for the first group of all",
        "On a broker that is alone the topic of offsets is made first, and the answer is the coordinator. Kafka "
        "answers COORDINATOR_NOT_AVAILABLE and makes it meanwhile, and so does a member of a cluster; the client tries "
        "again.",
        "Nobody waits for nothing.",
        "tests/unit/groups/test_coordinator.py::test_nobody_is_served_before_the_topic_exists_and_opening_creates_it",
    ),
    OtherDeviation(
        "The first generation of a group",
        "group.initial.rebalance.delay.ms is 0, not 3,000, and with 0 the first generation begins within the first "
        "JoinGroup, in Kafka a moment later.",
        "The first member need not wait for others that may not come.",
        "tests/unit/rules/test_group.py::test_the_first_rebalance_of_a_group_waits_for_more_members",
    ),
    OtherDeviation(
        "A JoinGroup or SyncGroup while an earlier one of the same member waits",
        "The earlier one is answered with REBALANCE_IN_PROGRESS. Kafka never answers it.",
        "No connection is stuck.",
        "tests/unit/rules/test_group.py::test_a_request_that_is_sent_twice_is_not_left_hanging",
    ),
    OtherDeviation(
        "A member that is removed while its SyncGroup waits",
        "It hears UNKNOWN_MEMBER_ID, from Kafka nothing.",
        "No connection is stuck.",
        "tests/unit/rules/test_group.py::test_members_that_do_not_sync_in_time_are_dropped",
    ),
    OtherDeviation(
        "A rebalance that nobody has joined",
        "It is looked at again after a second at the earliest. Kafka does so after the members' rebalance timeout, "
        "with a "
        "timeout of 0 without a pause.",
        "No busy loop on the word of a client.",
        "tests/unit/rules/test_group.py::test_a_rebalance_that_nobody_joins_is_tried_again_until_sessions_end",
    ),
    OtherDeviation(
        "A static member that comes back between JoinGroup and SyncGroup",
        "It has to sync under its new id. Kafka waits for the old one.",
        "The old one will not come.",
        "tests/unit/rules/test_group.py::test_a_return_while_assignments_are_awaited_makes_a_rebalance",
    ),
    OtherDeviation(
        "A client id or instance id so long that the member id made of it fits into no record",
        "INVALID_REQUEST. In Kafka storing the group fails later.",
        "The client is told what is wrong.",
        "tests/unit/groups/test_coordinator.py::test_names_that_would_make_too_long_a_member_id_are_refused",
    ),
    OtherDeviation(
        "DeleteGroups when the log refuses the tombstones",
        "The answer is the error, and the group stays. Kafka says that it is deleted and has it back after a restart.",
        "What is answered holds.",
        "tests/unit/groups/test_coordinator.py::test_a_group_that_cannot_be_deleted_in_the_log_stays",
    ),
    OtherDeviation(
        "A group without members and offsets to which ids were given away",
        "It stays until these have expired. Kafka removes it at the next check.",
        "A member that was just told its id finds its group.",
        "tests/unit/groups/test_coordinator.py::test_groups_with_nothing_go_at_the_next_check",
    ),
    OtherDeviation(
        "A marker for a partition that knows a newer epoch of the producer",
        "Is not needed any more: the transaction becomes complete without it. Kafka tries again for ever.",
        "Whoever brought the newer epoch has ended the transaction there; the next one need not wait.",
        "tests/unit/transactions/test_coordinator.py::test_a_partition_that_needs_no_marker_keeps_nobody_waiting",
    ),
    OtherDeviation(
        "InitProducerId with an old epoch of a producer id whose epochs are used up",
        "Is PRODUCER_FENCED. Kafka says UNKNOWN_SERVER_ERROR.",
        "Somebody else has the transactional id, which is what the code means.",
        "tests/unit/rules/test_transaction.py::test_an_id_that_was_left_with_the_last_epoch_of_all_goes_on",
    ),
    OtherDeviation(
        "Consumer groups: the last member of the newer protocol goes",
        "Its going and the group's becoming classic are two batches. In Kafka 4 they are one. A static one that comes "
        "back as a classic member with another subscription hears of the generation that is being ended, not of the "
        "one before.",
        "The second may be refused by the log and is tried again with the next request; nothing is lost between them.",
        "tests/unit/groups/test_migration.py::test_a_downgrade_that_the_log_refuses_comes_later",
    ),
    OtherDeviation(
        "Offsets of a transaction that are removed before it ends",
        "They are gone for good, whatever removes them: OffsetDelete, DeleteGroups, a topic that is deleted. Kafka 3.9 "
        "finds them again at its next start. What a transaction is about to replace does not expire.",
        "A start changes nothing; Kafka 4 does the same.",
        "tests/unit/groups/test_transactions.py::test_deleted_offsets_do_not_come_back_with_the_marker",
    ),
    OtherDeviation(
        "A commit of offsets that the log refuses while an earlier one is on its way",
        "The earlier one counts when it is durable. Kafka 3.9 forgets it, and finds it again at its next start.",
        "Its client was told that it is stored.",
        "tests/unit/rules/test_group_offsets.py::test_a_commit_that_failed_takes_no_older_one_along",
    ),
    OtherDeviation(
        "Loading groups: a damaged batch of __consumer_offsets",
        "It is skipped with a line in the log, and the rest is loaded. Kafka stops there and serves what it has read "
        "so far.",
        "One bad batch does not take all groups behind it with it.",
        "tests/unit/groups/test_replay.py::test_a_batch_that_is_damaged_is_skipped_and_the_rest_is_there",
    ),
    OtherDeviation(
        "Loading groups: a partition that cannot be read at all",
        "It is loaded again when somebody asks for one of its groups.",
        "The disk may be well again.",
        "tests/unit/groups/test_coordinator.py::test_a_partition_that_cannot_be_read_is_tried_again_when_somebody_asks",
    ),
    OtherDeviation(
        "Topics whose offsets are neither deleted nor expire",
        "Those of the members' subscriptions now. In Kafka those of the moment at which the generation began.",
        "It is what the members read.",
        "tests/unit/groups/test_coordinator.py::test_members_keep_the_offsets_of_what_they_are_subscribed_to",
    ),
    OtherDeviation(
        "Nodes: order of fields",
        "In the data of a topic's node partitions stand in the order of their numbers, in that of a config node the "
        "configs in the order in which they were first set. In Kafka both are in that of a hash table, from the fifth "
        "partition on.",
        "It can be foreseen; a reader of JSON does not see it.",
        "tests/oracle/test_znodes.py::test_nodes_are_those_that_kafka_has_in_zookeeper",
    ),
    OtherDeviation(
        "OffsetCommit 0 and OffsetFetch 0: a group id that is in no path",
        "INVALID_GROUP_ID: for one that is empty, or has empty names, `.` or `..` between slashes, or control "
        "characters, private ones or surrogates. "
        "Kafka with a ZooKeeper answers UNKNOWN_SERVER_ERROR.",
        KAFKA_FAILS,
        "tests/oracle/test_znodes.py::test_offsets_of_version_0_are_those_of_kafka_on_zookeeper",
    ),
    OtherDeviation(
        "OffsetCommit 0 and OffsetFetch 0: a long group id",
        "INVALID_GROUP_ID from 256 bytes or 9 names between slashes on. Kafka with a ZooKeeper makes the nodes.",
        "The name is in the path of every node, and a small request would make nodes of hundreds of megabytes.",
        "tests/unit/cluster/test_consumer_offsets.py::test_what_is_in_no_path_or_too_long_is_refused_and_nothing_is_written",
    ),
    OtherDeviation(
        "JoinGroup: member ids that are given away and not used",
        "Of all groups together the last 10,000 are waited for, each for its session timeout. Who comes with an older "
        "one is told UNKNOWN_MEMBER_ID, and joins anew. Kafka keeps all.",
        "Each takes memory that nobody has asked for in earnest.",
        "tests/unit/groups/test_coordinator.py::test_ids_that_were_given_away_are_bounded_whatever_groups_they_are_of",
    ),
    OtherDeviation(
        "How many groups and transactional ids there may be",
        "kbroker.groups.max and kbroker.transactional.ids.max, 100,000 each; one more is GROUP_MAX_SIZE_REACHED or "
        "POLICY_VIOLATION. Clients of one host make at most half of them. A member names at most 100 protocols, with "
        "message.max.bytes of metadata, else it is INVALID_REQUEST. Kafka has no limits.",
        "Whoever makes names up would fill the memory.",
        "tests/unit/groups/test_coordinator.py::test_there_is_room_for_so_many_groups_whatever_makes_them",
    ),
    OtherDeviation(
        "Groups of which nothing has come",
        "Are forgotten at once: a join or a commit that was refused makes no group. Kafka lists it until it looks for "
        "groups without offsets.",
        "Whoever names groups would fill the memory.",
        "tests/unit/groups/test_coordinator.py::test_a_group_that_nothing_has_come_of_is_forgotten_at_once",
    ),
    OtherDeviation(
        "OffsetCommit 0: many offsets, and old ones",
        "There are at most kbroker.zookeeper.offsets.max.nodes nodes, half of them at most by clients of one host; "
        "what needs more is INVALID_COMMIT_OFFSET_SIZE. "
        "On a broker that is alone, offsets go when their group has committed nothing for offsets.retention.minutes, "
        "or since the broker has started. Kafka with a ZooKeeper keeps all for ever, as a member of a cluster does.",
        "A node takes many times what it takes in a request, and nothing else would remove it.",
        "tests/unit/cluster/test_consumer_offsets.py::test_offsets_go_when_their_group_has_committed_nothing_for_too_long",
    ),
    OtherDeviation(
        "OffsetCommit 0: a partition twice",
        "The last offset is stored, once. Kafka with a ZooKeeper writes the node for each.",
        "It is the last one in both.",
        "tests/unit/server/handlers/test_groups.py::test_version_0_stores_the_last_offset_of_a_partition_named_twice",
    ),
    OtherDeviation(
        "Nodes: /config/changes",
        "Stays empty on a broker that is alone. Kafka puts a node there for each change of configs and removes it "
        "after 15 minutes, and so does a member of a cluster.",
        "It tells other brokers; a broker that keeps its nodes itself has none.",
        "tests/oracle/test_znodes.py::test_nodes_are_those_that_kafka_has_in_zookeeper",
    ),
    OtherDeviation(
        "ListPartitionReassignments at a controller without ZooKeeper",
        "NOT_CONTROLLER once it has heard nothing of ZooKeeper for zookeeper.session.timeout.ms. Kafka answers on.",
        "Another broker may be the controller by then; and `kbroker cluster status` sees over the Kafka protocol alone "
        "that nobody can be elected.",
        "tests/unit/cluster/test_controller_requests.py::"
        "test_a_controller_whose_session_may_have_ended_does_not_say_what_moves",
    ),
    OtherDeviation(
        "ZooKeeper: a start while the id is still registered",
        "Waits for that session to end, up to twice zookeeper.session.timeout.ms, and says so. Kafka ends with "
        "NodeExists.",
        "The restart after a kill succeeds by itself.",
        "tests/unit/cluster/test_membership.py::test_a_former_life_of_the_same_broker_is_waited_for",
    ),
    OtherDeviation(
        "Files: order of lines",
        "In recovery-point-offset-checkpoint and replication-offset-checkpoint partitions are sorted. In Kafka they "
        "are in "
        "the order of a hash table.",
        "It can be foreseen, and people find theirs.",
        "tests/oracle/test_files.py::test_files_are_those_that_kafka_leaves",
    ),
    OtherDeviation(
        "Files: log-start-offset-checkpoint",
        "Says where each log starts that does not start at 0. Kafka leaves out those that start with their first "
        "segment.",
        "A power cut may bring back the names of segments that retention has deleted; their records stay deleted.",
        "tests/oracle/test_files.py::test_files_are_those_that_kafka_leaves",
    ),
    OtherDeviation(
        "Files: what the log contradicts",
        "The last entry of a .timeindex before a segment is deleted by its age, leader epochs, start offsets and a "
        ".txnindex are held against the log, and are made anew with a line where it says something else. Kafka "
        "believes them.",
        "They have no check sum: one flipped bit deleted, hid or fenced what was there.",
        "tests/unit/storage/test_witness.py::test_no_bit_of_a_last_time_entry_deletes_or_hides_anything",
    ),
    OtherDeviation(
        "Files: a log that a clean stop has left and that would lose records",
        "Is refused (KAFKA_STORAGE_ERROR), with a line that says what can be done: its end is damaged, or it is said "
        "to start behind its end. Kafka removes or cuts it.",
        "A clean stop loses nothing; who wants to go on without those records decides that.",
        "tests/unit/storage/test_witness.py::test_a_log_that_would_be_cut_after_a_clean_stop_is_refused_until_it_is_cut_by_hand",
    ),
    OtherDeviation(
        "Transactions: a clock that is set",
        "A transaction times out by the monotonic clock; only one that was open before the start has its age by the "
        "wall clock, once. In Kafka a clock that is set an hour back keeps it open for an hour more.",
        "Readers of committed records wait for its end.",
        "tests/crash/test_set_clock.py::test_produce_consume_groups_and_transactions_go_on_whatever_the_clock_is_set_to",
    ),
    OtherDeviation(
        "Files: leader-epoch-checkpoint",
        "A broker that is alone writes the entry of a new epoch when the log is first used in it. The leader of a "
        "cluster's partition knows it from its election on, and writes it before the next checkpoint of recovery "
        "points. Kafka writes it when the epoch begins.",
        "A start, or an election, of thousands of partitions waits for no disk. Each record names its epoch, so "
        "nothing is lost; an epoch without a record makes no difference to anybody.",
        "tests/unit/storage/test_log_manager.py::test_a_leader_epoch_is_known_before_the_log_is_open",
    ),
    OtherDeviation(
        "How many idempotent producers a partition remembers",
        "At most 32,768, or fewer once those of all partitions take kbroker.producers.max.bytes (256 MiB); then those "
        "that have been silent for longest, about half of them, are forgotten and may go on with any sequence. "
        "Those in a transaction stay, and all of a partition that has fewer than 48. Kafka "
        "has no limit but producer.id.expiration.ms.",
        "Memory is bounded, however many producers come and go: 12.6 MB of a partition.",
        "tests/unit/storage/test_producers.py"
        "::test_memory_of_a_hundred_thousand_producers_is_bounded_and_goes_when_they_expire",
    ),
    OtherDeviation(
        "Files: older batches in snapshots of producers",
        "Behind the last batch of each producer up to four older ones, where Kafka does not read, if there are any.",
        "When the answers to several batches are lost and the broker is stopped, they are recognized when they are "
        "sent again. In Kafka their producer begins anew, and they are there twice.",
        "tests/unit/storage/test_producers.py::test_a_batch_sent_again_is_answered_with_its_first_offsets",
    ),
    OtherDeviation(
        "Files: snapshots of producers",
        "Those at or below the log's start stay as long as their segment; a log whose records were all deleted has one "
        "at its end. Kafka has neither after the next start, and does not know the producers of such a log any more.",
        "What such a producer sends again is still recognized.",
        "tests/oracle/test_files.py::test_files_are_those_that_kafka_leaves",
    ),
    OtherDeviation(
        "Files: entries of indexes",
        "What was written to a segment before a start counts for index.interval.bytes. Kafka begins to count anew, so "
        "that an entry is missing here and there.",
        "A log that is often opened and little written has entries too.",
        "tests/oracle/test_files.py::test_files_are_those_that_kafka_leaves",
    ),
    OtherDeviation(
        "Files: leader epochs after a crash",
        "A broker that is alone begins a new leader epoch when it starts after an unclean stop. Kafka on a single "
        "broker goes on with the old one. In a cluster the controller alone begins epochs, of both kinds of brokers.",
        "Records that were not flushed may be lost; consumers can notice it by the epoch (KIP-320).",
        "tests/oracle/test_files.py::test_files_are_those_that_kafka_leaves",
    ),
    OtherDeviation(
        "A topic that is found on disk",
        "By a broker that is alone: keeps all its records until somebody gives it settings, or its ZooKeeper's are "
        "imported. Kafka leaves its logs alone until a controller names them, and has their settings from there, as a "
        "member of a cluster does.",
        "Settings are not in a log directory, and defaults might delete what was to be kept for ever.",
        "tests/oracle/test_migration.py::test_a_directory_without_its_zookeeper_keeps_everything_until_settings_come",
    ),
    OtherDeviation(
        "All log directories have failed",
        "The broker stays and answers KAFKA_STORAGE_ERROR, /health says why. Kafka ends itself.",
        "Clients hear what is wrong, and so do those who look after it.",
        "tests/unit/storage/test_directories.py::"
        "test_when_all_directories_have_failed_everything_is_refused_and_nothing_ends",
    ),
    OtherDeviation(
        "A log directory that was removed or unmounted",
        "Is noticed within a second. Kafka notices it when it next makes a file in it.",
        "What is written to its open files is lost with it.",
        "tests/crash/test_disks.py::test_a_directory_that_fails_takes_its_partitions_and_the_rest_serves_on",
    ),
    OtherDeviation(
        "meta.properties that is cut short",
        "Is refused with file and position. Kafka reads of it what it can.",
        "A cluster id that is cut in half is another one.",
        "tests/unit/storage/test_directories.py::test_a_meta_properties_cut_short_is_never_another_identity",
    ),
    OtherDeviation(
        "Compaction: a full map",
        "The map of keys takes newer offsets of keys that it holds when it is full, and ends at the first other key. "
        "Kafka ends at the first record.",
        "A cleaning gets further; what is left in the end is the same.",
        "tests/unit/storage/test_compaction.py::test_a_small_map_cleans_step_by_step_to_the_same",
    ),
    OtherDeviation(
        "Compaction: indexes",
        "A compacted segment has an index entry for every index.interval.bytes. Kafka has one for each of its buffers "
        "that was written, of which one may be as large as the segment.",
        "Lookups in compacted segments are as fast as in others.",
        "tests/unit/storage/test_compaction.py::test_the_newest_of_each_key_is_left_and_a_restart_finds_the_same",
    ),
    OtherDeviation(
        "Compaction: trouble",
        "A damaged cleaner-offset-checkpoint means that logs are cleaned from their start; a full disk, that the "
        "cleaning is tried again. Kafka takes the log directory offline for both.",
        "Nothing is lost in either case.",
        "tests/unit/storage/test_cleaner.py::test_a_checkpoint_that_cannot_be_right_means_to_begin_anew",
    ),
    OtherDeviation(
        "Compaction: retention of compact,delete",
        "Segments go every log.retention.check.interval.ms, as those of other logs do, whatever the cleaner does. In "
        "Kafka the cleaner deletes them, every log.cleaner.backoff.ms and after each cleaning; without a cleaner, or "
        "in a log that it has given up, they stay.",
        "What a log may take on the disk does not hang on another feature.",
        "tests/unit/storage/test_cleaner.py::test_retention_of_a_compacted_log_needs_no_cleaner",
    ),
    OtherDeviation(
        "Compaction: log.cleaner.threads",
        "May be set to any number while the broker runs. Kafka allows half to twice of what it was.",
        "Nothing needs the limit.",
        "tests/unit/server/test_dynamic_settings.py::test_a_dynamic_setting_has_effect_while_the_broker_runs",
    ),
    OtherDeviation(
        "Files: .lock and coordination.sqlite",
        ".lock stays after a stop, with the number of the process that had it. The nodes that Kafka keeps in ZooKeeper "
        "are in coordination.sqlite in the first log directory, on a broker that is alone; the directories of a member "
        "of a cluster have coordination.sqlite.carried in its place.",
        "Whoever removes a lock file may remove that of the next; a broker alone needs nothing beside it.",
        "tests/oracle/test_files.py::test_files_are_those_that_kafka_leaves",
    ),
    OtherDeviation(
        "dump-log",
        "Takes directories and every kind of file, tells of damage on the standard error with its byte and by exit "
        "code 1, and says in its own words why a record of an internal topic cannot be decoded. kafka-dump-log takes "
        "the files of segments, ends with 0 whatever it finds, and with a stack trace where it cannot read on. Its "
        "options for decoders that are Java classes, and for the logs of KRaft and of tiered storage, are not there.",
        "What is right is printed word for word as Kafka does; what is wrong should be found by scripts.",
        "tests/compat/test_dump_log.py::test_both_print_the_same",
    ),
    OtherDeviation(
        "AlterReplicaLogDirs: a start in the middle of a move",
        "The unfinished copy is removed, and the log is copied anew. Kafka goes on where the copy ends. A move that "
        "was interrupted between its two renames is finished by the start; Kafka refuses to start, for it renames in "
        "the other order and finds the partition twice.",
        "After a power cut nobody knows which of the copy's bytes are the log's.",
        "tests/unit/storage/test_log_moves.py::test_an_unfinished_copy_is_removed_and_the_move_begins_anew",
    ),
    OtherDeviation(
        "AlterReplicaLogDirs: threads",
        "One thread copies one log after the other. Kafka has num.replica.alter.log.dirs.threads, by default one for "
        "each log directory.",
        "A move is for disks that serve clients meanwhile, and its rate is limited for all of them together.",
        "tests/unit/storage/test_log_moves.py::test_copying_keeps_to_its_rate",
    ),
)
