"""What a broker with a topic of two partitions, and a group of one member, answers rightly: in any version."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator
from typing import Any

from kbroker._core.wire.message_set import MessageSetBuilder
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey, response_class
from kbroker.protocol.messages import Message, Struct
from kbroker.protocol.records import encode_batch
from tests.fuzz.stretching import filled
from tests.kit.brokers import answers
from tests.kit.brokers.scripted import Asked
from tests.kit.models.message import Field, fields_of

NODE = 1
END = 3
"""Of each partition's log."""
PASSWORD, SALT, ITERATIONS = b"p", b"salt", 4096
ALWAYS = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE)


NAMES = {"name": "t", "topic": "t", "topic_name": "t", "resource_name": "t", "group_id": "g", "transactional_id": "i"}
"""What is asked for where an answer is the same whatever is asked."""


class HonestBroker:
    """`age` says which versions it serves: 0 all, others for each API another highest."""

    def __init__(self, port: int, age: int):
        self.port = port
        self.highest = {
            key: v.max if not age or key in ALWAYS else v.min + (age * 31 + key * 7) % (v.max - v.min + 1)
            for key, v in SERVED.items()
        }
        self.member_metadata = b""
        self.server_signature = b""
        self.client_first = b""

    def answer(self, asked: Asked) -> Message:
        """Fields that the version has not are left out."""
        api_key = ApiKey(asked.api_key)
        make: Callable[[Any], Message] | None = getattr(self, f"_{api_key.name.lower()}", None)
        if make is None:
            made: Message = filled(response_class(api_key), asked.version)
            for owner, field in places_in(made, type(made), None, asked.version):
                if field.name in NAMES and not field.is_array:
                    setattr(owner, field.name, NAMES[field.name])
            return made
        message = make(asked.message) if api_key is not ApiKey.FETCH else self._fetched(asked.message, asked.version)
        fit(message, type(message), None, asked.version)
        return message

    # --- the cluster ----------------------------------------------------------------------------------------

    def _api_versions(self, message: Any) -> Message:
        answer = answers.versions(answers.up_to(self.highest))
        finalized = {"name": "transaction.version", "max_version_level": 2, "min_version_level": 2}
        answer.finalized_features = [M.ApiVersionsResponse.FinalizedFeatureKey(**finalized)]
        answer.finalized_features_epoch = 1
        return answer

    def _metadata(self, message: Any) -> Message:
        names = [topic.name for topic in message.topics or []] or ["t"]
        topics = [answers.topic(name, [NODE, NODE], leader_epoch=1) for name in names]
        return answers.metadata({NODE: self.port}, topics)

    def _find_coordinator(self, message: Any) -> Message:
        R = M.FindCoordinatorResponse
        here = {"node_id": NODE, "host": "127.0.0.1", "port": self.port}
        return R(coordinators=[R.Coordinator(key=key, **here) for key in message.coordinator_keys], **here)

    # --- partitions -----------------------------------------------------------------------------------------

    def _produce(self, message: Any) -> Message:
        R = M.ProduceResponse
        return R(
            responses=[
                R.TopicProduceResponse(
                    name=topic.name,
                    partition_responses=[R.PartitionProduceResponse(index=each.index) for each in topic.partition_data],
                )
                for topic in message.topic_data
            ]
        )

    def _fetch(self, message: Any) -> Message:
        raise AssertionError("needs the version")

    def _fetched(self, message: Any, version: int) -> Message:
        R = M.FetchResponse
        return R(
            responses=[
                R.FetchableTopicResponse(
                    topic=topic.topic,
                    partitions=[
                        R.PartitionData(
                            partition_index=each.partition,
                            high_watermark=END,
                            last_stable_offset=END,
                            records=log(version) if 0 <= each.fetch_offset < END else b"",
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in message.topics
            ]
        )

    def _list_offsets(self, message: Any) -> Message:
        R = M.ListOffsetsResponse

        def row(each: Any) -> M.ListOffsetsResponse.ListOffsetsPartitionResponse:
            offset = 0 if each.timestamp == -2 else END
            return R.ListOffsetsPartitionResponse(
                partition_index=each.partition_index, offset=offset, old_style_offsets=[offset], leader_epoch=1
            )

        topics = [
            R.ListOffsetsTopicResponse(name=t.name, partitions=[row(p) for p in t.partitions]) for t in message.topics
        ]
        return R(topics=topics)

    def _offset_for_leader_epoch(self, message: Any) -> Message:
        R = M.OffsetForLeaderEpochResponse
        return R(
            topics=[
                R.OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        R.EpochEndOffset(partition=each.partition, leader_epoch=1, end_offset=END)
                        for each in topic.partitions
                    ],
                )
                for topic in message.topics
            ]
        )

    # --- producers ------------------------------------------------------------------------------------------

    def _init_producer_id(self, message: Any) -> Message:
        return M.InitProducerIdResponse(producer_id=5, producer_epoch=1)

    def _end_txn(self, message: Any) -> Message:
        return M.EndTxnResponse(producer_id=5, producer_epoch=2)

    def _add_partitions_to_txn(self, message: Any) -> Message:
        R = M.AddPartitionsToTxnResponse
        topics = [
            R.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[R.AddPartitionsToTxnPartitionResult(partition_index=n) for n in topic.partitions],
            )
            for topic in message.v3_and_below_topics
        ]
        return R(results_by_topic_v3_and_below=topics)

    def _add_offsets_to_txn(self, message: Any) -> Message:
        return M.AddOffsetsToTxnResponse()

    def _txn_offset_commit(self, message: Any) -> Message:
        R = M.TxnOffsetCommitResponse
        return R(topics=_committed(message, R.TxnOffsetCommitResponseTopic, R.TxnOffsetCommitResponsePartition))

    # --- the group ------------------------------------------------------------------------------------------

    def _join_group(self, message: Any) -> Message:
        R = M.JoinGroupResponse
        first = message.protocols[0]
        return R(
            generation_id=1,
            protocol_type="consumer",
            protocol_name=first.name,
            leader="m",
            member_id="m",
            members=[R.JoinGroupResponseMember(member_id="m", metadata=first.metadata)],
        )

    def _sync_group(self, message: Any) -> Message:
        given = next((bytes(each.assignment) for each in message.assignments), b"")
        return M.SyncGroupResponse(protocol_type="consumer", protocol_name="range", assignment=given)

    def _heartbeat(self, message: Any) -> Message:
        return M.HeartbeatResponse()

    def _leave_group(self, message: Any) -> Message:
        return M.LeaveGroupResponse()

    def _offset_commit(self, message: Any) -> Message:
        R = M.OffsetCommitResponse
        return R(topics=_committed(message, R.OffsetCommitResponseTopic, R.OffsetCommitResponsePartition))

    def _offset_fetch(self, message: Any) -> Message:
        R = M.OffsetFetchResponse
        rows = [
            R.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    R.OffsetFetchResponsePartition(partition_index=n, committed_offset=1)
                    for n in topic.partition_indexes
                ],
            )
            for topic in message.topics or []
        ]
        groups = [
            R.OffsetFetchResponseGroup(
                group_id=group.group_id,
                topics=[
                    R.OffsetFetchResponseTopics(
                        name=topic.name,
                        partitions=[
                            R.OffsetFetchResponsePartitions(partition_index=n, committed_offset=1)
                            for n in topic.partition_indexes
                        ],
                    )
                    for topic in group.topics or []
                ],
            )
            for group in message.groups
        ]
        return R(topics=rows, groups=groups)

    # --- who is there ---------------------------------------------------------------------------------------

    def _sasl_handshake(self, message: Any) -> Message:
        return M.SaslHandshakeResponse(mechanisms=["PLAIN", "SCRAM-SHA-256"])

    def _sasl_authenticate(self, message: Any) -> Message:
        return M.SaslAuthenticateResponse(auth_bytes=self.sasl(bytes(message.auth_bytes)), session_lifetime_ms=100)

    def sasl(self, said: bytes) -> bytes:
        """The other side of PLAIN, or of SCRAM-SHA-256 (RFC 5802)."""
        if said.startswith(b"n,,"):
            self.client_first = said[3:]
            nonce = said.rpartition(b"r=")[2]
            self.server_first = b"r=" + nonce + b"x,s=" + base64.b64encode(SALT) + b",i=%d" % ITERATIONS
            return self.server_first
        if said.startswith(b"c="):
            signed = b",".join((self.client_first, self.server_first, said.rpartition(b",p=")[0]))
            salted = hashlib.pbkdf2_hmac("sha256", PASSWORD, SALT, ITERATIONS)
            return b"v=" + base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256"))
        return b""


def _committed(message: Any, topic: Callable[..., Any], partition: Callable[..., Any]) -> list[Any]:
    """Return the rows of an answer by which every offset of a request is committed."""
    return [
        topic(name=each.name, partitions=[partition(partition_index=row.partition_index) for row in each.partitions])
        for each in message.topics
    ]


def log(version: int) -> bytes:
    """A partition's, as that version of Fetch has it."""
    if version >= 4:
        return encode_batch([(5, b"k", b"v")] * END)
    messages = MessageSetBuilder(0 if version < 2 else 1)
    for offset in range(END):
        messages.append(offset, 5, b"k", b"v")
    return messages.messages()


def places_in(value: Struct, cls: type[Message], struct: str | None, version: int) -> Iterator[tuple[Struct, Field]]:
    """Each field that the version has, wherever it is, and what it is a field of."""
    for field in fields_of(cls, struct):
        if not field.exists(version):
            continue
        yield value, field
        held = getattr(value, field.name)
        if field.is_struct and held is not None:
            for each in held if field.is_array else [held]:
                yield from places_in(each, cls, field.element, version)


def fit(value: Struct, cls: type[Message], struct: str | None, version: int) -> None:
    """What does not exist in a version becomes what it is by default."""
    fresh = cls() if struct is None else getattr(cls, struct)()
    for field in fields_of(cls, struct):
        if not field.exists(version):
            setattr(value, field.name, getattr(fresh, field.name))
        elif field.is_struct and (held := getattr(value, field.name)) is not None:
            for each in held if field.is_array else [held]:
                fit(each, cls, field.element, version)
