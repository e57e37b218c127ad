"""What becomes of batches that a broker refused, or whose connection broke. For the client's thread.

After such a batch the engine sends nothing more to its partition. Once none of the partition's batches is under way, it
asks here. Batches that are sent again go first, in their old order and with their old sequences: a broker that has
appended a batch already recognizes it, and no record is there twice. An idempotent producer begins anew, with another
producer id and sequences from 0 on, where that is not possible: when a batch expired that may have been appended, or
the broker has lost its state of the producer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from kbroker._core.client.producer.engine import ProduceEngine
from kbroker._core.client.producer.trouble import Trouble, TroubledBatch, troubles
from kbroker.client.errors import (
    HINTS,
    RETRIABLE,
    STALE_METADATA,
    BrokerError,
    ClientError,
    ConnectionFailed,
    TimedOut,
    error_of,
)
from kbroker.client.network.backoff import Backoff
from kbroker.client.network.cluster_view import Node
from kbroker.client.producer.transactions import Transactions
from kbroker.errors import BadInput, ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.compression import inflate

log = logging.getLogger("kbroker.client")

EXPIRED = -2
NODES_VERSION = 10  #: the version of Produce whose responses have the addresses of new leaders (KIP-951)
LOST_STATE = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH}
)
"""Errors of a batch by which the broker says that it does not know the batches before it, or the producer's epoch."""


class Sender:
    """Decides about the refused batches of one engine.

    `refresh(topics)` asks for metadata. `renew()` asks for a new producer id, and then `renewed` is called.
    """

    def __init__(
        self,
        engine: ProduceEngine,
        *,
        idempotent: bool,
        retries: int,
        delivery_timeout_ms: int,
        backoff_s: float,
        longest_backoff_s: float,
        refresh: Callable[[Collection[str]], object],
        renew: Callable[[], object],
        note_leader: Callable[[str, int, int, int, Collection[Node]], bool] = lambda *_: False,
        transactions: Transactions | None = None,
    ):
        self.engine = engine
        self.idempotent = idempotent
        self.retries = retries
        self.delivery_timeout_ms = delivery_timeout_ms
        self.backoff_s = backoff_s
        self.longest_backoff_s = longest_backoff_s
        self.refresh = refresh
        self.renew = renew
        self.note_leader = note_leader
        self.transactions = transactions
        self._for_new_id: list[Trouble] = []
        self._nodes: Collection[Node] = ()  # brokers whose addresses came with the names of new leaders
        engine.on_told = self.handle_news

    def handle_news(self) -> None:
        """Act on what the engine tells: refused batches, and partitions without a leader. The engine calls this."""
        self.engine.run_callbacks()
        told = self.engine.take_nodes()
        if told is not None:
            self._nodes = nodes_of(told)
        for trouble in troubles(self.engine):
            self._decide(trouble)
        leaderless, foreign = self.engine.waiting()
        if leaderless:
            self.refresh(leaderless)
        if self.transactions is not None:
            self.transactions.add(foreign)
            self.transactions.note_progress()

    def renewed(self, producer_id: int, producer_epoch: int) -> None:
        """Use a new producer id, and send again what has waited for it."""
        self.engine.set_producer(producer_id, producer_epoch)
        waiting, self._for_new_id = self._for_new_id, []
        for trouble in waiting:
            trouble.resend(renumber=True)

    def _decide(self, trouble: Trouble) -> None:
        first = trouble.batches[0]
        if first.error == EXPIRED:
            self._expire(trouble)
        elif first.error == ErrorCode.MESSAGE_TOO_LARGE and trouble.split(_inflated):
            log.info("%s-%d: a batch of %d records is too large for the broker and is split", *named(trouble, first))
            trouble.resend()
        elif self.idempotent and first.error in LOST_STATE and self.transactions is None:
            log.warning(
                "%s-%d: the broker does not know what came before %d records; sequences begin anew",
                *named(trouble, first),
            )
            self._begin_anew(trouble)
        elif first.error in RETRIABLE and first.attempts <= self.retries and first.age_ms < self.delivery_timeout_ms:
            if self._has_moved(trouble, first):
                trouble.resend()
                return
            if first.error in STALE_METADATA:
                self.refresh([trouble.topic])
            backoff = Backoff(self.backoff_s, self.longest_backoff_s, first.attempts - 1)
            trouble.resend(int(backoff.next_s() * 1000))
        else:
            self._fail(trouble, first)

    def _has_moved(self, trouble: Trouble, batch: TroubledBatch) -> bool:
        """Note the partition's new leader if the broker has named one, and return whether that was news (KIP-951)."""
        if batch.leader < 0 or batch.error not in STALE_METADATA:
            return False
        return self.note_leader(trouble.topic, trouble.partition, batch.leader, batch.leader_epoch, self._nodes)

    def _expire(self, trouble: Trouble) -> None:
        count = next((i for i, each in enumerate(trouble.batches) if each.error != EXPIRED), len(trouble.batches))
        # A batch that was sent but not answered may have been appended: its sequences must not be used again.
        unsure = any(each.attempts for each in trouble.batches[:count])
        refused = next((each for each in trouble.batches[:count] if each.refusal), None)
        error = self._too_late(trouble, refused.refusal if refused else 0, refused.text if refused else None)
        self._failed(trouble, error, count, unsure)

    def _fail(self, trouble: Trouble, first: TroubledBatch) -> None:
        late = first.error in RETRIABLE and first.age_ms >= self.delivery_timeout_ms
        error = self._too_late(trouble, first.error, first.text) if late else failure(trouble, first)
        self._failed(trouble, error, 1, first.error in RETRIABLE or first.error in LOST_STATE)

    def _failed(self, trouble: Trouble, error: ClientError, count: int, unsure: bool) -> None:
        """Let the first `count` batches of a partition fail.

        `unsure`: the broker may have appended them, or has lost its state of the producer.
        """
        if self.transactions is not None:
            self.transactions.batch_failed(error, unsure=unsure)  # first: callbacks of the failure may send more
            trouble.fail(error)  # all of them: the transaction can only be aborted
            trouble.resend()
            return
        trouble.fail(error, count)
        if unsure and self.idempotent:
            self._begin_anew(trouble)
        else:
            trouble.resend()

    def _too_late(self, trouble: Trouble, refusal: int, text: str | None) -> TimedOut:
        """Return the error of an expired batch.

        `refusal` and `text`: the broker's last error code and its message; 0 when it has not answered.
        """
        code = error_of(refusal)
        because = ""
        if code == ErrorCode.NETWORK_EXCEPTION:
            because = f"; at last: {text}" if text else "; at last its broker was not reached"
        elif code:
            because = f"; the last answer was {code.name}" + (f": {text}" if text else "")
        return TimedOut(
            f"{trouble.topic}-{trouble.partition}: not delivered within {self.delivery_timeout_ms} ms "
            f"(delivery.timeout.ms){because}",
            hint=HINTS.get(code),
        )

    def _begin_anew(self, trouble: Trouble) -> None:
        self._for_new_id.append(trouble)
        if len(self._for_new_id) == 1:
            self.renew()


def nodes_of(told: bytes) -> list[Node]:
    """Parse an array of NodeEndpoint as it stands in a Produce response; [] when it does not parse."""
    answer = bytearray(1 + 4)  # a response without topics and throttling, with the tagged field alone
    answer[0] = 1
    answer += b"\x01\x00"
    size = len(told)
    while size > 0x7F:
        answer.append(size & 0x7F | 0x80)
        size >>= 7
    answer.append(size)
    try:
        found = M.ProduceResponse.decode(bytes(answer) + told, NODES_VERSION).node_endpoints
    except BadInput as error:
        log.debug("brokers that do not parse in a response to Produce: %s", error)
        return []
    return [Node(each.node_id, each.host, each.port, each.rack) for each in found]


def _inflated(codec: int, data: bytes) -> bytes:
    return inflate(codec, data, (1 << 31) - 1)


def named(trouble: Trouble, batch: TroubledBatch) -> tuple[str, int, int]:
    """Return topic, partition and number of records, for log lines."""
    return trouble.topic, trouble.partition, batch.record_count


def failure(trouble: Trouble, batch: TroubledBatch) -> ClientError:
    """Return the error of records that a broker has refused."""
    code = error_of(batch.error)
    text = f"{trouble.topic}-{trouble.partition}: {code.name}"
    if batch.text:
        text += f": {batch.text}"
    if batch.attempts > 1:
        text += f" ({batch.attempts} attempts)"
    return (ConnectionFailed if code == ErrorCode.NETWORK_EXCEPTION else BrokerError)(text, code=code)
