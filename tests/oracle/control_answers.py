"""How a broker of a cluster answers to requests between brokers, above all to wrong ones.

`python -m tests.oracle.control_answers --brokers kafka,kafka` prints the answers to all cases, also to those of
`control_versions`, `control_clients` and `control_states`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from kbroker.protocol import messages as M
from tests.oracle import control_clients, control_states, control_versions
from tests.oracle.control_story import STAND_IN
from tests.oracle.control_talk import GHOST, GHOST_ID, TOPIC, Talk, ask_all, case, is_told, make_topic

_ = control_versions

UNTOLD_S = 1.5
"""After so long what the controller sends has been refused."""


# --- what a controller asks -----------------------------------------------------------------------------


@case
def leader_and_isr_of_an_old_controller(t: Talk) -> None:
    t.ask(t.leader_and_isr(old_controller=0))


@case
def leader_and_isr_for_an_earlier_life_of_the_broker(t: Talk) -> None:
    t.ask(t.leader_and_isr(broker_epoch=t.broker_epochs[2] - 1))


@case
def leader_and_isr_for_a_later_life_of_the_broker(t: Talk) -> None:
    t.ask(t.leader_and_isr(broker_epoch=t.broker_epochs[2] + 1000))


@case
def leader_and_isr_without_the_broker_among_the_replicas(t: Talk) -> None:
    t.ask(t.leader_and_isr(topic="elsewhere", topic_id=bytes(range(1, 17)), replicas=[1, 3], isr=[1], leader=1))


@case
def leader_and_isr_of_a_topic_that_zookeeper_does_not_have(t: Talk) -> None:
    t.ask(t.leader_and_isr())


@case
def leader_and_isr_with_the_same_or_an_older_leader_epoch(t: Talk) -> None:
    t.ask(t.leader_and_isr(leader_epoch=3))
    t.ask(t.leader_and_isr(leader_epoch=2))


@case
def leader_and_isr_with_another_topic_id(t: Talk) -> None:
    t.ask(t.leader_and_isr(leader_epoch=4, topic_id=bytes(range(2, 18))))


@case
def leader_and_isr_with_an_unknown_leader(t: Talk) -> None:
    t.ask(t.leader_and_isr(leader_epoch=5, leader=77, replicas=[77, 2], isr=[77]))


@case
def leader_and_isr_without_a_leader(t: Talk) -> None:
    t.ask(t.leader_and_isr(leader_epoch=8, leader=-1))


@case
def stop_replica_of_an_old_controller(t: Talk) -> None:
    t.ask(t.stop_replica(9, False, controller_epoch=0))


@case
def stop_replica_for_an_earlier_life_of_the_broker(t: Talk) -> None:
    t.ask(t.stop_replica(9, False, broker_epoch=t.broker_epochs[2] - 1))


@case
def stop_replica_with_an_older_leader_epoch(t: Talk) -> None:
    t.ask(t.stop_replica(7, True))


@case
def stop_replica_of_an_unknown_partition(t: Talk) -> None:
    t.ask(t.stop_replica(1, False, topic="nowhere"))
    t.ask(t.stop_replica(-2, True, topic="nowhere"))


@case
def stop_replica_with_the_same_leader_epoch_and_again(t: Talk) -> None:
    t.ask(t.leader_and_isr(topic="stopped", topic_id=bytes(range(6, 22)), leader_epoch=8))
    for deletes in (False, True, True):
        t.ask(t.stop_replica(8, deletes, "stopped"))


@case
def update_metadata_of_an_old_controller(t: Talk) -> None:
    t.ask(t.update_metadata(controller_epoch=0))


@case
def update_metadata_for_another_life_of_the_broker(t: Talk) -> None:
    t.ask(t.update_metadata(broker_epoch=t.broker_epochs[2] - 1))
    t.ask(t.update_metadata(broker_epoch=t.broker_epochs[2] + 1000))


@case
def update_metadata_that_changes_nothing(t: Talk) -> None:
    t.ask(t.update_metadata())
    t.ask(t.update_metadata(), version=7)


# --- what a controller is asked -------------------------------------------------------------------------


@case
def controlled_shutdown_elsewhere_and_of_nobody(t: Talk) -> None:
    R = M.ControlledShutdownRequest
    t.ask(R(broker_id=STAND_IN, broker_epoch=t.stand_in.broker_epoch), node_id=2)
    t.ask(R(broker_id=77, broker_epoch=-1), node_id=1)
    t.ask(R(broker_id=STAND_IN, broker_epoch=t.stand_in.broker_epoch - 1), node_id=1)


@case
def alter_partition_of_another_life_or_broker(t: Talk) -> None:
    at = t.fresh()
    t.ask(t.alter_partition(at, broker_epoch=t.stand_in.broker_epoch - 1), node_id=1)
    t.ask(t.alter_partition(at, broker_epoch=t.stand_in.broker_epoch + 1000), node_id=1)
    t.ask(t.alter_partition(at, broker_id=77), node_id=1)


@case
def alter_partition_of_what_is_not_there(t: Talk) -> None:
    at = t.fresh()
    t.ask(t.alter_partition(at._replace(topic=GHOST, topic_id=GHOST_ID)), node_id=1)
    t.ask(t.alter_partition(at._replace(index=9)), node_id=1)


@case
def alter_partition_of_other_epochs(t: Talk) -> None:
    at = t.fresh()
    for epoch in (-1, 1):
        t.ask(t.alter_partition(at._replace(leader_epoch=at.leader_epoch + epoch)), node_id=1)
        t.ask(t.alter_partition(at._replace(partition_epoch=at.partition_epoch + epoch)), node_id=1)


@case
def alter_partition_with_replicas_that_cannot_be_in_sync(t: Talk) -> None:
    t.ask(t.alter_partition(t.fresh(), [STAND_IN, 1, 2]), node_id=1)
    for version in (1, 3):
        t.ask(t.alter_partition(t.fresh(), [STAND_IN, 77], version), node_id=1, version=version)
    t.ask(t.alter_partition(t.fresh(), []), node_id=1)


@case
def alter_partition_of_one_that_another_broker_leads(t: Talk) -> None:
    t.ask(t.alter_partition(t.fresh([1, STAND_IN])), node_id=1)


@case
def alter_partition_that_changes_nothing_and_is_asked_twice(t: Talk) -> None:
    at = t.fresh()
    t.ask(t.alter_partition(at, at.isr), node_id=1)
    t.ask(t.alter_partition(at, [STAND_IN]), node_id=1)
    t.ask(t.alter_partition(at, [STAND_IN]), node_id=1)
    t.ask(t.alter_partition(at, [STAND_IN, 1]), node_id=1)


@case
def allocate_producer_ids_elsewhere_and_of_another_life(t: Talk) -> None:
    R = M.AllocateProducerIdsRequest
    t.ask(R(broker_id=STAND_IN, broker_epoch=t.stand_in.broker_epoch), node_id=2)
    t.ask(R(broker_id=STAND_IN, broker_epoch=t.stand_in.broker_epoch - 1), node_id=1)
    t.ask(R(broker_id=77, broker_epoch=t.stand_in.broker_epoch), node_id=1)


@case
def allocate_producer_ids(t: Talk) -> None:
    answer = t.ask(M.AllocateProducerIdsRequest(broker_id=STAND_IN, broker_epoch=t.stand_in.broker_epoch), node_id=1)
    t.answers[-1]["producer_id_start"] = answer.producer_id_start % 1000


# --- what only a controller does for clients ------------------------------------------------------------


@case
def topics_are_made_grown_and_deleted_by_the_controller_only(t: Talk) -> None:
    C = M.CreateTopicsRequest
    t.ask(C(topics=[C.CreatableTopic(name="new", num_partitions=1, replication_factor=1)], timeout_ms=5000))
    P = M.CreatePartitionsRequest
    t.ask(P(topics=[P.CreatePartitionsTopic(name=TOPIC, count=9, assignments=None)], timeout_ms=5000))
    D = M.DeleteTopicsRequest
    t.ask(D(topics=[D.DeleteTopicState(name=TOPIC)], timeout_ms=5000))


def ask_for_topic(t: Talk, name: str, replicas: list[list[int]], *, validate_only: bool = False) -> None:
    C = M.CreateTopicsRequest
    made = [C.CreatableReplicaAssignment(partition_index=at, broker_ids=ids) for at, ids in enumerate(replicas)]
    topic = C.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=made)
    t.ask(C(topics=[topic], timeout_ms=5000, validate_only=validate_only), node_id=1)


@case
def topics_with_repeated_brokers_or_uneven_assignments(t: Talk) -> None:
    ask_for_topic(t, "twice", [[1, 1]])
    ask_for_topic(t, "uneven", [[1], [1, 2]])


@case
def topics_with_unknown_brokers_or_without_replicas(t: Talk) -> None:
    ask_for_topic(t, "unknown", [[1, 77]], validate_only=True)  # Kafka would make both
    ask_for_topic(t, "none", [[]], validate_only=True)


@case
def topics_with_more_replicas_than_brokers(t: Talk) -> None:
    C = M.CreateTopicsRequest
    t.ask(C(topics=[C.CreatableTopic(name="many", num_partitions=1, replication_factor=9)], timeout_ms=5000), node_id=1)


@case
def partitions_with_assignments_that_cannot_be(t: Talk) -> None:
    R = M.CreatePartitionsRequest
    for replicas in ([1, 77], [1, 1], [], [1]):
        made = [R.CreatePartitionsAssignment(broker_ids=replicas)]
        topic = R.CreatePartitionsTopic(name=TOPIC, count=4, assignments=made)
        t.ask(R(topics=[topic], timeout_ms=5000), node_id=1)


@case
def leaders_are_elected_by_the_controller_only(t: Talk) -> None:
    R = M.ElectLeadersRequest
    asked = R(election_type=0, topic_partitions=[R.TopicPartitions(topic=TOPIC, partitions=[0])], timeout_ms=5000)
    t.ask(asked, node_id=2)
    t.ask(asked, node_id=1)
    other = [R.TopicPartitions(topic=TOPIC, partitions=[9]), R.TopicPartitions(topic="nowhere", partitions=[0])]
    t.ask(R(election_type=0, topic_partitions=other, timeout_ms=5000), node_id=1)
    t.ask(
        R(election_type=1, topic_partitions=[R.TopicPartitions(topic=TOPIC, partitions=[1])], timeout_ms=5000),
        node_id=1,
    )


@case
def reassignments_that_cannot_be(t: Talk) -> None:
    R = M.AlterPartitionReassignmentsRequest

    def moved(replicas: list[int] | None, topic: str = TOPIC, partition: int = 2, node_id: int = 1) -> None:
        one = R.ReassignablePartition(partition_index=partition, replicas=replicas)
        t.ask(R(timeout_ms=5000, topics=[R.ReassignableTopic(name=topic, partitions=[one])]), node_id=node_id)

    moved([1, 2], node_id=2)
    moved([1, 77])
    moved([1, 1])
    moved([])
    moved([-1])
    moved(None)
    moved([1], topic="nowhere")
    moved([1], partition=9)


@case
def reassignments_are_listed_by_the_controller_only(t: Talk) -> None:
    R = M.ListPartitionReassignmentsRequest
    t.ask(R(timeout_ms=5000, topics=None), node_id=2)
    t.ask(R(timeout_ms=5000, topics=None), node_id=1)
    t.ask(
        R(timeout_ms=5000, topics=[R.ListPartitionReassignmentsTopics(name="nowhere", partition_indexes=[0])]),
        node_id=1,
    )


# --- what replicas ask ----------------------------------------------------------------------------------


@case
def fetches_of_a_broker_that_is_no_replica(t: Talk) -> None:
    t.ask(t.fetch(1, replica_id=77), node_id=1)
    t.ask(t.fetch(2, replica_id=STAND_IN), node_id=2)


@case
def fetches_of_a_replica_with_epochs(t: Talk) -> None:
    epoch = t.state(index=1).leader_epoch
    t.ask(t.fetch(1, current_leader_epoch=epoch), node_id=1)
    t.ask(t.fetch(1, current_leader_epoch=epoch + 1), node_id=1)
    t.ask(t.fetch(1, current_leader_epoch=epoch, last_fetched_epoch=epoch + 5, fetch_offset=9), node_id=1)
    t.ask(t.fetch(1, current_leader_epoch=epoch, fetch_offset=9), node_id=1)
    t.ask(t.fetch(1, current_leader_epoch=epoch, fetch_offset=9, last_fetched_epoch=epoch), node_id=1)


@case
def fetches_of_replicas_and_of_consumers_at_a_follower(t: Talk) -> None:
    t.ask(t.fetch(2, replica_id=STAND_IN), node_id=1)
    t.ask(t.fetch(2, replica_id=-1), node_id=1)
    t.ask(t.fetch(2, replica_id=-1), node_id=1, version=10)
    t.ask(t.fetch(0, replica_id=-1), node_id=2)


@case
def ends_of_epochs(t: Talk) -> None:
    epoch = t.state(index=1).leader_epoch
    t.ask(t.epoch_end(1, epoch, epoch), node_id=1)
    t.ask(t.epoch_end(1, epoch + 1, epoch), node_id=1)
    t.ask(t.epoch_end(1, -1, epoch + 9), node_id=1)
    t.ask(t.epoch_end(1, -1, -1), node_id=1)
    t.ask(t.epoch_end(2, -1, 0), node_id=1)
    t.ask(t.epoch_end(2, -1, 0, replica_id=-1), node_id=1)
    t.ask(t.epoch_end(9, -1, 0), node_id=1)


@case
def offsets_that_replicas_ask_for(t: Talk) -> None:
    R = M.ListOffsetsRequest
    for partition, replica_id, epoch in (
        (1, STAND_IN, -1),
        (1, 77, -1),
        (1, STAND_IN, 9),
        (2, STAND_IN, -1),
        (2, -1, -1),
    ):
        for timestamp in (-1, -2):
            asked = R.ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
            topic = R.ListOffsetsTopic(name=TOPIC, partitions=[asked])
            t.ask(R(replica_id=replica_id, topics=[topic]), node_id=1)


@case
def markers_of_partitions_that_are_led_elsewhere_or_not_there(t: Talk) -> None:
    R = M.WriteTxnMarkersRequest
    for topic, partition in ((TOPIC, 2), (TOPIC, 9), ("nowhere", 0)):
        marker = R.WritableTxnMarker(
            producer_id=5000,
            producer_epoch=0,
            transaction_result=False,
            topics=[R.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
            coordinator_epoch=0,
        )
        t.ask(R(markers=[marker]), node_id=1)


# --- last, for the cluster is not the same afterwards ---------------------------------------------------


@case
def a_controlled_shutdown_of_what_leads_and_is_alone_in_an_isr(t: Talk) -> None:
    alone = t.fresh()
    t.ask(t.alter_partition(alone, [STAND_IN]), node_id=1)
    for version in (3, 2, 1, 0):
        R = M.ControlledShutdownRequest
        t.ask(R(broker_id=STAND_IN, broker_epoch=t.stand_in.broker_epoch), node_id=1, version=version)
        left = t.answers[-1]["remaining_partitions"]
        t.answers[-1]["remaining_partitions"] = {name: left[name] for name in left if name in (alone.topic, TOPIC)}
    state = t.state()
    t.answers.append([state.leader, state.leader_epoch, state.isr])


case(control_clients.what_clients_are_told_of_a_replica_that_is_away)
case(control_clients.changes_of_a_topic_that_is_being_deleted)
case(control_states.elections_while_a_leader_is_away)
case(control_states.appends_while_too_few_replicas_are_in_sync)


@case
def control_requests_of_a_controller_far_ahead_fence_the_true_one_until_the_broker_restarts(t: Talk) -> None:
    """Anybody who reaches a broker may send them, where there is no authorization."""
    pretend_to_be_a_later_controller(t, 1000)
    make_topic(t.cluster, "never", [[2]])
    time.sleep(UNTOLD_S)
    show_told(t, "never")
    t.cluster.nodes[2].stop()
    t.cluster.start([2])
    t.await_that("the true controller is obeyed", lambda: is_told(t, "never"))
    show_told(t, "never")


@case
def control_requests_of_a_later_controller_fence_the_true_one_until_the_next(t: Talk) -> None:
    pretend_to_be_a_later_controller(t, 1)
    make_topic(t.cluster, "untold", [[2]])
    time.sleep(UNTOLD_S)
    show_told(t, "untold")
    t.stand_in.zookeeper.delete("/controller")
    t.await_that("the next controller is obeyed", lambda: is_told(t, "untold"))
    show_told(t, "untold")
    t.ask(Talk(t.cluster, t.stand_in, t.names).update_metadata(broker_epoch=-1))


case(control_states.requests_about_a_failed_directory)
case(control_states.records_in_a_failed_directory)


def show_told(t: Talk, topic: str) -> None:
    t.ask(t.metadata(topic), only="topics")
    t.ask(t.end(topic))


def pretend_to_be_a_later_controller(t: Talk, later: int) -> None:
    """Send broker 2 what a controller of a later epoch sends, then what the true one sends."""
    epoch = t.controller_epoch + later
    asked: dict[str, Any] = {"broker_epoch": -1, "topic": f"later-{later}", "topic_id": bytes([later % 256] * 16)}
    t.ask(t.leader_and_isr(old_controller=epoch, **asked))
    t.ask(t.update_metadata(controller_epoch=epoch, broker_epoch=-1))
    t.ask(t.leader_and_isr(leader_epoch=4, **asked))
    t.ask(t.update_metadata())
    t.ask(t.stop_replica(3, True, f"later-{later}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", default="kafka,kafka")
    for name, answers in ask_all(parser.parse_args().brokers.split(",")).cases.items():
        print("\n".join([name, *(f"    {answer}" for answer in answers)]))


if __name__ == "__main__":
    main()
