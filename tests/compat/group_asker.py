"""Asks a broker about one group of the newer protocol, and keeps its answers and records as comparable text."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from kbroker.cluster.broker_configs import ConfigSource
from kbroker.groups import consumer_records
from kbroker.model import GROUP_OFFSETS_TOPIC
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import read_batches
from kbroker.rules.consumer_group_member import (
    CurrentChange,
    EpochChange,
    RegexChange,
    ResolvedRegex,
    TargetChange,
    TargetEpochChange,
)
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient

GROUP, SET, DELETE, APPEND = 32, 0, 1, 2
HEARTBEAT, DESCRIBE = ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE
R = M.ConsumerGroupHeartbeatRequest


class Asker:
    """Asks one broker about one group, and keeps its answers in words that are the same for both brokers."""

    def __init__(self, broker: BrokerProcess, ids: dict[str, bytes], group: str):
        self.broker, self.ids, self.group = broker, ids, group
        self.said: list[object] = []
        self.epochs: dict[str, int] = {}
        self.named: dict[str, str] = {}
        """Names in the place of member ids that the broker made."""
        self.described = ""
        self.client = WireClient("127.0.0.1", broker.port, timeout_s=20)

    def plain(self, answer: object) -> str:
        text = repr(answer)
        for member_id, called in self.named.items():
            text = text.replace(member_id, called)
        for name, topic_id in self.ids.items():
            text = text.replace(repr(topic_id), f"<{name}>")
        # RE2/J and RE2 word the error in a pattern differently.
        text = re.sub(r"(is not a valid regular expression: ).*?(\.')", r"\1...\2", text)
        # Kafka's hash maps have an order of their own.
        return re.sub(r"TopicPartitions\([^)]*\)(?:, TopicPartitions\([^)]*\))+", lambda found: _sorted(found[0]), text)

    def ask(self, api_key: ApiKey, version: int, message: M.Message) -> Any:
        answer = self.client.call(api_key, version, message)
        self.said.append(self.plain(answer))
        return answer

    def beat(self, member: str, epoch: int | None = None, version: int = 1, **fields: Any) -> Any:
        """Send a heartbeat, with the epoch that the member was last told unless another is given."""
        owned = fields.pop("owned", None)
        if owned is not None:
            owned = [R.TopicPartitions(topic_id=self.ids[name], partitions=list(of)) for name, of in owned.items()]
        message = R(
            group_id=fields.pop("group", self.group),
            member_id=member,
            member_epoch=self.epochs.get(member, 0) if epoch is None else epoch,
            topic_partitions=owned,
            **fields,
        )
        answer = self.ask(HEARTBEAT, version, message)
        if not answer.error_code and answer.member_epoch > 0:
            self.epochs[member] = answer.member_epoch
        return answer

    def join(self, member: str, *topics: str, version: int = 1, **fields: Any) -> Any:
        given = {"rebalance_timeout_ms": 1000, "owned": {}, "subscribed_topic_names": list(topics or ("t",)), **fields}
        return self.beat(member, 0, version, **given)

    def describe(self, *groups: str) -> Any:
        message = M.ConsumerGroupDescribeRequest(group_ids=list(groups or (self.group,)))
        answer = self.client.call(DESCRIBE, 1, message)
        answer.groups.sort(key=lambda group: group.group_id)
        for group in answer.groups:
            group.members.sort(key=lambda member: self.named.get(member.member_id, member.member_id))
        self.said.append(self.plain(answer))
        return answer

    def configure(self, *changes: tuple[str, int, str | None], group: str | None = None, check: bool = False) -> Any:
        """Change settings of the group with IncrementalAlterConfigs."""
        I = M.IncrementalAlterConfigsRequest  # noqa: E741
        configs = [I.AlterableConfig(name=name, config_operation=how, value=value) for name, how, value in changes]
        name = self.group if group is None else group
        resource = I.AlterConfigsResource(resource_type=GROUP, resource_name=name, configs=configs)
        message = I(resources=[resource], validate_only=check)
        return self.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, message)

    def configs(self, group: str | None = None) -> dict[str, str]:
        """Return the group's settings by name (DescribeConfigs). Kafka 4 has settings of other kinds of groups, too."""
        D = M.DescribeConfigsRequest
        resource = D.DescribeConfigsResource(
            resource_type=GROUP, resource_name=self.group if group is None else group, configuration_keys=None
        )
        answer = self.client.call(ApiKey.DESCRIBE_CONFIGS, 4, D(resources=[resource], include_synonyms=True))
        (result,) = answer.results
        result.configs = [config for config in result.configs if config.name.startswith("consumer.")]
        result.configs.sort(key=lambda config: config.name)
        for config in result.configs:
            # The default of the interval between assignments differs on purpose.
            config.synonyms = [one for one in config.synonyms if one.source != ConfigSource.DEFAULT_CONFIG]
        self.described = self.plain(answer)
        return {config.name: config.value for config in result.configs}

    def configured(self, **values: str) -> None:
        """Wait until the group has these settings, named by the last words of their names: Kafka answers earlier."""
        wanted = {f"consumer.{name.replace('_', '.')}": value for name, value in values.items()}
        self.until(lambda: wanted.items() <= self.configs().items())
        self.said.append(self.described)

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def members(self) -> set[str]:
        answer = self.client.call(DESCRIBE, 1, M.ConsumerGroupDescribeRequest(group_ids=[self.group]))
        return {member.member_id for member in answer.groups[0].members}

    def stored(self) -> list[str]:
        """Return the records of the group, in order."""
        found = []
        offset = 0
        while True:
            F = M.FetchRequest
            partition = F.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            topic = F.FetchTopic(topic=GROUP_OFFSETS_TOPIC, partitions=[partition])
            answer = self.client.call(ApiKey.FETCH, 4, F(replica_id=-1, max_bytes=1 << 20, topics=[topic]))
            records = bytes(answer.responses[0].partitions[0].records or b"")
            if not records:
                return in_order(found)
            for batch in read_batches(records):
                offset = batch.info.last_offset + 1
                for record in batch.records():
                    shown = self._shown(record.key or b"", record.value)
                    if shown is not None:
                        found.append(shown)

    def _ordered(self, assigned: Mapping[bytes, Any]) -> dict[bytes, Any]:
        return {topic_id: assigned[topic_id] for topic_id in self.ids.values() if topic_id in assigned}

    def _shown(self, key: bytes, value: bytes | None) -> str | None:
        kind = int.from_bytes(key[:2], "big")
        if kind not in (3, 4, 5, 6, 7, 8, 16) or key[4 : 4 + len(self.group)] != self.group.encode():
            return None
        if value is None:
            return self.plain(f"{kind} {key[6 + len(self.group) :].decode()} gone")
        decoded = consumer_records.decode(key, value)
        assert decoded is not None
        change = decoded[1]
        if isinstance(change, EpochChange):
            change = change._replace(metadata_hash=0)
        elif isinstance(change, TargetEpochChange):
            change = change._replace(timestamp_ms=0)
        elif isinstance(change, TargetChange) and change.assignment is not None:
            change = change._replace(assignment=self._ordered(change.assignment))
        elif isinstance(change, CurrentChange) and change.current is not None:
            current = change.current
            current = current._replace(
                assigned=self._ordered(current.assigned), revoking=self._ordered(current.revoking)
            )
            change = change._replace(current=current)
        elif isinstance(change, RegexChange) and change.resolved is not None:
            change = change._replace(resolved=ResolvedRegex(change.resolved.topics))
        return self.plain(change)


def in_order(records: list[str]) -> list[str]:
    """Sort target records that follow each other: Kafka has them in an order of its own, several changes in a batch."""
    ordered: list[str] = []
    targets: list[str] = []
    for record in records:
        if record.startswith("TargetChange"):
            targets.append(record)
        else:
            ordered += [*sorted(targets), record]
            targets = []
    return ordered + sorted(targets)


def _sorted(parts: str) -> str:
    return ", ".join(sorted(re.findall(r"TopicPartitions\([^)]*\)", parts)))


def offsets_told(a: Asker, member_id: str | None, epoch: int, *partitions: int, stable: bool = False) -> None:
    F = M.OffsetFetchRequest
    topics = [F.OffsetFetchRequestTopics(name="t", partition_indexes=list(partitions) or [0])]
    group = F.OffsetFetchRequestGroup(group_id=a.group, member_id=member_id, member_epoch=epoch, topics=topics)
    a.ask(ApiKey.OFFSET_FETCH, 9, F(groups=[group], require_stable=stable))


class Transaction:
    """An open transaction that has offsets of the group."""

    def __init__(self, a: Asker):
        self.a, self.id, self.number = a, f"of-{a.group}", 10
        init = M.InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=60_000)
        self.got = self.until_done(ApiKey.INIT_PRODUCER_ID, 4, init)
        self.until_done(ApiKey.ADD_OFFSETS_TO_TXN, 3, M.AddOffsetsToTxnRequest(**self.known(), group_id=a.group))

    def known(self) -> dict[str, Any]:
        known = {"producer_id": self.got.producer_id, "producer_epoch": self.got.producer_epoch}
        return {"transactional_id": self.id, **known}

    def until_done(self, api: ApiKey, version: int, message: M.Message) -> Any:
        answers: list[Any] = []

        def done() -> bool:
            answers.append(self.a.client.call(api, version, message))
            return not answers[-1].error_code

        self.a.until(done)
        return answers[-1]

    def commit(
        self, partition: int, epoch: int, member_id: str, instance_id: str | None = None, version: int = 4
    ) -> None:
        C = M.TxnOffsetCommitRequest
        self.number += 1
        offset = C.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=self.number, committed_metadata=""
        )
        member = {"member_id": member_id, "generation_id": epoch, "group_instance_id": instance_id}
        topics = [C.TxnOffsetCommitRequestTopic(name="t", partitions=[offset])]
        message = C(**self.known(), group_id=self.a.group, topics=topics, **member)  # type: ignore[arg-type]
        self.a.ask(ApiKey.TXN_OFFSET_COMMIT, version, message)

    def end(self, commit: bool) -> None:
        self.until_done(ApiKey.END_TXN, 4, M.EndTxnRequest(**self.known(), committed=commit))
        F = M.OffsetFetchRequest
        topics = [F.OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1, 2, 3])]
        wanted = F(groups=[F.OffsetFetchRequestGroup(group_id=self.a.group, topics=topics)], require_stable=True)

        def stable() -> bool:
            (found,) = self.a.client.call(ApiKey.OFFSET_FETCH, 8, wanted).groups
            return not any(partition.error_code for topic in found.topics for partition in topic.partitions)

        self.a.until(stable)
