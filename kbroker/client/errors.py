"""What a client raises. Each error has a code, says whether to try again, and what to do.

`UsageError` and its kin are the caller's mistakes; `BrokerError` is what a broker answered; `ConnectionFailed` and
`TimedOut` are the network's; `MalformedAnswer` is a broker that does not keep to the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.errors import HINTS as HINTS
from kbroker.errors import RETRIABLE as RETRIABLE
from kbroker.errors import ClientError as ClientError
from kbroker.errors import ErrorCode
from kbroker.errors import ForkedClient as ForkedClient
from kbroker.errors import TimedOut as TimedOut
from kbroker.errors import UsageError as UsageError
from kbroker.model import TopicPartition

STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""Codes after which what the client knows of the cluster is asked for again."""

FAILURES_TOLD = 3
NO_SUCH_PARTITION = "choose a partition that is there, or add some to the topic"


class BrokerError(ClientError):
    """A broker answered with an error."""


class CommitFailed(BrokerError):
    """Offsets were not committed, for the group has moved on: somebody else may have the partitions now."""

    code = ErrorCode.ILLEGAL_GENERATION
    hint = "poll more often, with fewer records, or raise max.poll.interval.ms; their records come again elsewhere"


class LogTruncated(ClientError):
    """Records that were read are no longer in the log: a broker that did not have them became leader (KIP-320).

    `offset`: where reading had come to; `divergent_offset`: where the log began to differ, None if nobody knows.
    """

    code = ErrorCode.OFFSET_OUT_OF_RANGE
    hint = "seek to divergent_offset to read what is there instead, or set auto.offset.reset"

    def __init__(self, partition: TopicPartition, offset: int, divergent_offset: int | None):
        where = f"from offset {divergent_offset} on" if divergent_offset is not None else "before that"
        super().__init__(f"{partition}: the log was truncated: {offset} was read, but it is another {where}")
        self.partition = partition
        self.offset = offset
        self.divergent_offset = divergent_offset


class PartialFailure(BrokerError):
    """Some of what one call asked for was refused: `errors` has why, by item, `results` what the others gave.

    `code`, `retriable` and `hint` are those of the first.
    """

    def __init__(self, errors: Mapping[Any, ClientError], results: Mapping[Any, Any]):
        self.errors = dict(errors)
        self.results = dict(results)
        first = next(iter(self.errors.values()))
        told = "; ".join(error.message for error in list(self.errors.values())[:FAILURES_TOLD])
        more = ", ..." if len(self.errors) > FAILURES_TOLD else ""
        count = f"{len(self.errors)} of {len(self.errors) + len(self.results)} failed"
        super().__init__(f"{count}: {told}{more}", code=first.code, hint=first.hint)


class ConnectionFailed(ClientError):
    """A broker is not reached, or the connection to it broke. The message names its address."""

    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True


class MalformedAnswer(ConnectionFailed):
    """A broker sent what does not parse; its connection was closed."""

    code = ErrorCode.CORRUPT_MESSAGE


class AuthenticationFailed(ClientError):
    """The broker does not know who we are, or we do not know who it is."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class ClientClosed(UsageError):
    """The client is closed."""


def error_of(code: int) -> ErrorCode:
    """The code as ErrorCode; one that is not known is UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def raise_for(error_code: int, message: str | None = None, what: str = "") -> None:
    """BrokerError for any code but NONE; `what` names the thing that was refused."""
    if error_code != ErrorCode.NONE:
        raise refusal(error_code, message, what)


def raise_for_topic(error_code: int, what: str) -> None:
    """The same for what a Metadata answer says of a topic."""
    if error_code != ErrorCode.NONE:
        raise topic_refusal(error_code, what)


def topic_refusal(error_code: int, what: str) -> BrokerError:
    """What `raise_for_topic` raises. A broker that has just begun knows too few others to make a topic: that passes."""
    found = refusal(error_code, None, what)
    found.retriable |= error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    return found


def partition_refusal(error_code: int, partition: TopicPartition, count: int) -> BrokerError:
    """What `topic_refusal` gives for a partition that has no leader; `count`: how many its topic has, 0 not known."""
    if error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and count:
        found = refusal(error_code, f"the topic has partitions 0 to {count - 1}", str(partition))
        found.hint = NO_SUCH_PARTITION
        return found
    return topic_refusal(error_code, str(partition))


def refusal(error_code: int, message: str | None = None, what: str = "") -> BrokerError:
    """What `raise_for` raises. Without the end of a broker's sentence: hints and other errors follow."""
    code = error_of(error_code)
    message = message.removesuffix(".") if message else None
    name = code.name if code == error_code else f"the unknown error code {error_code}"
    text = f"{name}: {message}" if message not in (None, name) else name
    return BrokerError(f"{what}: {text}" if what else text, code=code)
