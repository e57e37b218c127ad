"""Clients' and followers' requests to a broker: what the compiled request paths do, on the same logs.

A request is a tuple, its kind first. An answer is a tuple, its error code first. Control requests are the protocol's
own messages, encoded and decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.model import LATEST_TIMESTAMP, TopicPartition
from kbroker.protocol import messages as M
from tests.simulation.scheduler import MS, Event

if TYPE_CHECKING:
    from tests.simulation.broker import Life

Respond = Callable[[Any], None]

FETCH_WAIT = 500 * MS


@dataclass
class PendingAck:
    """A produce request that waits for its replicas, and for a flush if the policy asks for one."""

    log: Any
    base_offset: int
    end: int
    must_flush: bool
    respond: Respond
    timer: Event | None = None
    is_over: bool = False

    def finish(self, code: int) -> None:
        if not self.is_over:
            self.is_over = True
            if self.timer is not None:
                self.timer.cancel()
            self.respond((code, self.base_offset if code == 0 else -1))


@dataclass
class PendingDeletion:
    """A deletion of records that waits until all live replicas have done it."""

    log: Any
    offset: int
    respond: Respond
    timer: Event | None = None
    is_over: bool = False

    def finish(self, code: int) -> None:
        if not self.is_over:
            self.is_over = True
            if self.timer is not None:
                self.timer.cancel()
            self.respond((code,))


@dataclass
class PendingFetch:
    """A follower's fetch that waits for records."""

    wanted: list[Any]
    respond: Respond
    ends: dict[TopicPartition, int]
    timer: Event | None = None
    is_over: bool = False


class Requests:
    """The requests of one life of a broker."""

    def __init__(self, life: Life):
        self._life = life
        self._acks: list[PendingAck] = []
        self._deletions: list[PendingDeletion] = []
        self._fetches: list[PendingFetch] = []

    def serve(self, request: Any, respond: Respond) -> None:
        kind, *fields = request
        getattr(self, f"_{kind}")(*fields, respond)

    # --- control requests

    def _message(self, name: str, version: int, body: bytes, respond: Respond) -> None:
        life = self._life
        request = getattr(M, name).decode(body, version)

        def answer(response: Any) -> None:
            respond(response.encode(version))
            life.touched()

        if name == "LeaderAndIsrRequest":
            answer(life.partitions.leader_and_isr(request, version))
        elif name == "StopReplicaRequest":
            answer(life.partitions.stop_replicas(request))
        elif name == "UpdateMetadataRequest":
            answer(life.partitions.update_metadata(request))
        elif name == "ListOffsetsRequest":
            answer(self._listed(request))
        elif name == "ApiVersionsRequest":
            answer(M.ApiVersionsResponse())
        else:
            life.kit.ask(life, request, version, answer)

    def _admin(self, value: Any, respond: Respond) -> None:
        """A request of an administrator to the controller; see `workload.Admin`."""
        self._life.kit.administer(self._life, value, respond)

    def _metadata(self, respond: Respond) -> None:
        image = self._life.metadata.image
        respond((0, image.controller_id, {
            TopicPartition(topic.name, each.partition_id): (topic.topic_id, each.leader, each.replicas)
            for topic in image.topics.values() for each in topic.partitions
        }))  # fmt: skip

    # --- producing

    def _log(self, at: TopicPartition, topic_id: Any) -> Any:
        log = self._life.logs.get(at)
        if log is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic_id is not None and log.topic_id != topic_id:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_ID)
        return log

    def _produce(
        self, at: TopicPartition, topic_id: Any, batch: bytes, acks: int, timeout: int, respond: Respond
    ) -> None:
        try:
            log = self._log(at, topic_id)
            appended = self._life.kit.append(log, batch, acks)
        except KbrokerError as error:
            respond((int(error.code), -1))
            return
        self._await(log, appended, acks, timeout, respond)

    def _marker(
        self, at: TopicPartition, topic_id: Any, producer_id: int, epoch: int, commit: bool, bumped: bool, timeout: int,
        respond: Respond,
    ) -> None:  # fmt: skip
        try:
            log = self._log(at, topic_id)
            appended = self._life.kit.append_marker(log, producer_id, epoch, commit, bumped)
        except KbrokerError as error:
            respond((int(error.code), -1))
            return
        self._await(log, appended, -1, timeout, respond)

    def _await(self, log: Any, appended: Any, acks: int, timeout: int, respond: Respond) -> None:
        life = self._life
        end = appended.last_offset + 1
        ack = PendingAck(log, appended.base_offset, end, appended.must_flush, respond)
        if appended.must_flush:
            self.flush(log)
        if acks != -1 and not appended.must_flush:
            ack.finish(0)
            return
        if acks != -1:
            ack.end = -1
        ack.timer = life.scheduler.after(timeout, lambda: ack.finish(int(ErrorCode.REQUEST_TIMED_OUT)), life.process)
        self._acks.append(ack)

    def flush(self, log: Any, done: Callable[[int], None] = lambda _: None) -> None:
        """Flush a log, in a moment. `done` gets an error code, unless the log is closed before."""
        life = self._life

        def flush() -> None:
            if log.state.state != "open":
                return
            try:
                log.flush()
            except KbrokerError as error:
                life.note(f"no flush of {log.topic_partition}: {error}")
                done(int(error.code))
            else:
                done(0)

        life.after(life.scheduler.chance.randrange(200, 5 * MS), flush)

    def settle(self) -> None:
        """Answer what need not wait any longer."""
        for ack in self._acks:
            code = None if ack.is_over else self._outcome(ack)
            if code is not None:
                ack.finish(code)
        self._acks = [ack for ack in self._acks if not ack.is_over]
        for deletion in self._deletions:
            state = deletion.log.state
            if state.state != "open" or state.role != "leader":
                deletion.finish(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            elif state.low_watermark >= deletion.offset:
                deletion.finish(0)
        self._deletions = [deletion for deletion in self._deletions if not deletion.is_over]
        for fetch in self._fetches:
            if not fetch.is_over and self._has_more(fetch):
                self._answer_fetch(fetch)
        self._fetches = [fetch for fetch in self._fetches if not fetch.is_over]

    def _outcome(self, ack: PendingAck) -> int | None:
        state = ack.log.state
        if state.state != "open" or state.role != "leader":
            return int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if ack.must_flush and state.flushed_offset < max(ack.end, ack.base_offset + 1):
            return None
        if state.high_watermark < ack.end:
            return None
        return self._life.kit.ack_code(ack.log) if ack.end >= 0 else 0

    # --- consuming

    def _fetch(
        self, at: TopicPartition, topic_id: Any, offset: int, committed: bool, max_bytes: int, respond: Respond
    ) -> None:
        try:
            log = self._log(at, topic_id)
            self._life.kit.check_readable(log)
            state = log.state
            aborted = log.aborted_transactions(offset, max_bytes) if committed else []
            data = log.read(offset, max_bytes, committed=committed)
        except KbrokerError as error:
            respond((int(error.code), b"", [], -1, -1))
            return
        respond((0, data, aborted, state.high_watermark, state.log_start_offset))

    def _delete_records(self, at: TopicPartition, topic_id: Any, offset: int, timeout: int, respond: Respond) -> None:
        """Delete what is below `offset`; -1: below the high watermark."""
        life = self._life
        try:
            log = self._log(at, topic_id)
            if log.state.role != "leader":
                raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            life.simulation.checker.deletion_asked(log, offset)
            start = log.delete_records_before(offset)
        except KbrokerError as error:
            respond((int(error.code),))
            return
        life.note(f"{at} starts at {start}")
        deletion = PendingDeletion(log, start if offset < 0 else offset, respond)
        deletion.timer = life.scheduler.after(
            timeout, lambda: deletion.finish(int(ErrorCode.REQUEST_TIMED_OUT)), life.process
        )
        self._deletions.append(deletion)

    # --- producer ids

    def _producer_ids(self, count: int, respond: Respond) -> None:
        """Give out so many producer ids, one by one as to so many producers; fewer if there are no more now."""
        given: list[int] = []
        try:
            given.extend(self._life.producer_ids.next() for _ in range(count))
        except KbrokerError as error:
            respond((int(error.code), given))
            return
        respond((0, given))

    # --- followers

    def _replica_fetch(self, wanted: list[Any], respond: Respond) -> None:
        """`wanted`: what `fetchers.VirtualEngine` sends for each partition. It waits if there is nothing to tell."""
        life = self._life
        fetch = PendingFetch(wanted, respond, {})
        answers = [self._replica_part(each, fetch) for each in wanted]
        if any(answer[0] or answer[1] is not None or answer[2] for answer in answers):
            respond(answers)
            return
        fetch.timer = life.scheduler.after(FETCH_WAIT, lambda: self._answer_fetch(fetch), life.process)
        self._fetches.append(fetch)

    def _has_more(self, fetch: PendingFetch) -> bool:
        logs = ((self._life.logs.get(at), end) for at, end in fetch.ends.items())
        return any(log is None or log.state.state != "open" or log.state.log_end_offset != end for log, end in logs)

    def _answer_fetch(self, fetch: PendingFetch) -> None:
        if fetch.is_over:
            return
        fetch.is_over = True
        if fetch.timer is not None:
            fetch.timer.cancel()
        fetch.respond([self._replica_part(each, None) for each in fetch.wanted])
        self._life.touched()

    def _replica_part(self, wanted: Any, fetch: PendingFetch | None) -> tuple[int, Any, bytes, int, int]:
        """(error, (diverging epoch, its end) or None, records, high watermark, log start) of one partition."""
        at = wanted.at
        try:
            log = self._log(at, wanted.topic_id)
            answer = self._life.kit.replica_read(log, wanted)
        except KbrokerError as error:
            return int(error.code), None, b"", -1, -1
        if fetch is not None:
            fetch.ends[at] = log.state.log_end_offset
        return answer

    def _listed(self, request: Any) -> Any:
        """Answer ListOffsets of a follower, which asks for the log's start or its end."""
        R = M.ListOffsetsResponse
        topics = []
        for topic in request.topics:
            parts = []
            for asked in topic.partitions:
                code, offset = 0, -1
                try:
                    log = self._log(TopicPartition(topic.name, asked.partition_index), None)
                    self._life.kit.check_epoch(log, asked.current_leader_epoch)
                    state = log.state
                    offset = state.log_end_offset if asked.timestamp == LATEST_TIMESTAMP else state.log_start_offset
                except KbrokerError as error:
                    code = int(error.code)
                parts.append(
                    R.ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index, error_code=code, offset=offset
                    )
                )
            topics.append(R.ListOffsetsTopicResponse(name=topic.name, partitions=parts))
        return R(topics=topics)
