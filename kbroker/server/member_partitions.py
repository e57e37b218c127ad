"""A member's logs for the controller's requests, and its configs for the logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from kbroker.cluster.image import Topic
from kbroker.cluster.shared_topics import SharedTopics
from kbroker.model import TopicPartition
from kbroker.server.local_partitions import LocalPartitions
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager

UNCLEAN_ELECTION = "unclean.leader.election.enable"


class MemberPartitions:
    """A `replication.surroundings.LogHost` and a `cluster.shared_topics.MemberHost`."""

    def __init__(
        self,
        logs: LogManager,
        partitions: LocalPartitions,
        topics: SharedTopics,
        allows_unclean: Callable[[str], None],
    ):
        """`allows_unclean` is called with a topic whose own configs are new or have changed, and allow unclean
        elections.
        """
        self._allows_unclean = allows_unclean
        self._logs = logs
        self._partitions = partitions
        self._topics = topics
        self._followed: dict[str, tuple[Mapping[str, str], bool]] = {}
        """The own configs of each topic that its logs have, and whether it has more than one replica."""

    # --- logs, for the controller's requests ----------------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> Log | None:
        log = self._logs.get(topic_partition)
        return None if log is None or log.state.state == "deleted" else log

    def expect(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._logs.expect(topic_partitions)

    def open_or_create(self, topic: str, topic_id: UUID, partition_id: int, *, is_new: bool) -> Log:
        log = self._logs.get(TopicPartition(topic, partition_id))
        if log is not None and log.topic_id == topic_id:
            return log
        options = self._partitions.options_of(self._topics.configured(topic, topic_id))
        return self._logs.create(topic, topic_id, partition_id, options, is_new=is_new)

    def delete(self, topic_partition: TopicPartition) -> None:
        self._logs.delete(topic_partition)

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        log = self._logs.get(topic_partition)
        return log is not None and log.state.state == "offline"

    # --- metadata and configs, for the topics ---------------------------------------------------------------------

    def topics_changed(self, changed: Sequence[Topic], removed: Sequence[Topic]) -> None:
        table = self._logs.partition_table
        for topic in removed:
            table.forget_elsewhere(topic.name)
            self._followed.pop(topic.name, None)
        self._partitions.topics_deleted([topic.name for topic in removed])
        for topic in changed:
            table.set_elsewhere(topic.name, topic.topic_id.bytes, len(topic.partitions))
            configs, is_replicated = self._followed.get(topic.name, (None, False))
            if configs is not topic.configs or is_replicated != topic.may_be_replicated:
                # Its logs may have been opened with older configs.
                self._followed[topic.name] = topic.configs, topic.may_be_replicated
                self._partitions.follow_topic(topic)
                self._tell_unclean(topic)

    def update_topic(self, topic: Topic) -> None:
        self._partitions.update_topic(topic)
        self._tell_unclean(topic)

    def _tell_unclean(self, topic: Topic) -> None:
        if topic.configs.get(UNCLEAN_ELECTION, "").strip().lower() == "true":
            self._allows_unclean(topic.name)

    def update_broker_configs(self, configs: Mapping[str, str]) -> None:
        self._partitions.update_broker_configs(configs)

    def update_group_configs(self, group_id: str) -> None:
        self._partitions.update_group_configs(group_id)
