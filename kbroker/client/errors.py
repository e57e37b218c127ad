"""Exceptions of the client. Each has a `code`, says whether a retry may help (`retriable`), and what to do (`hint`).

`UsageError` and its subclasses are mistakes of the caller. `BrokerError` is an error that a broker answered with.
`ConnectionFailed` and `TimedOut` are failures of the network. `MalformedAnswer` means that a broker does not keep to
the protocol.
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
"""Codes after which the client asks for fresh metadata."""

FAILURES_TOLD = 3
NO_SUCH_PARTITION = "choose a partition that is there, or add some to the topic"


class BrokerError(ClientError):
    """Raised when a broker answers with an error; `code` is the broker's."""


class CommitFailed(BrokerError):
    """Raised when offsets are not committed because the group has rebalanced.

    Another member may have the partitions.
    """

    code = ErrorCode.ILLEGAL_GENERATION
    hint = "poll more often, with fewer records, or raise max.poll.interval.ms; their records come again elsewhere"


class LogTruncated(ClientError):
    """Raised when records that were read are no longer in the log: a broker without them became leader (KIP-320).

    `offset`: the consumer's position. `divergent_offset`: the first offset at which the log differs; None when it is
    not known.
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
    """Raised when one call asked for several things and some of them failed.

    `errors`: the ClientError of each item that failed. `results`: the results of the others. `code`, `retriable` and
    `hint` are those of the first error.
    """

    def __init__(self, errors: Mapping[Any, ClientError], results: Mapping[Any, Any]):
        self.errors = dict(errors)
        self.results = dict(results)
        first = next(iter(self.errors.values()))
        messages = list(dict.fromkeys(error.message for error in self.errors.values()))
        told = "; ".join(messages[:FAILURES_TOLD])
        more = ", ..." if len(messages) > FAILURES_TOLD else ""
        count = f"{len(self.errors)} of {len(self.errors) + len(self.results)} failed"
        super().__init__(f"{count}: {told}{more}", code=first.code, hint=first.hint)


class ConnectionFailed(ClientError):
    """Raised when a broker is not reached, or the connection to it breaks. The message names the address."""

    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True
    refused = False
    """Whether all addresses refused the connection: nobody listens there."""


class MalformedAnswer(ConnectionFailed):
    """Raised when a broker's response does not parse. The connection is closed."""

    code = ErrorCode.CORRUPT_MESSAGE


class AuthenticationFailed(ClientError):
    """Raised when the broker refuses the client's credentials or certificate, or the client the broker's."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class ClientClosed(UsageError):
    """Raised when the client is closed, or is closed during the call."""


def error_of(code: int) -> ErrorCode:
    """Return an error code as ErrorCode; UNKNOWN_SERVER_ERROR for a code that is not known."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def raise_for(error_code: int, message: str | None = None, what: str = "") -> None:
    """Raise BrokerError for any code but NONE. `what` names the thing that was refused."""
    if error_code != ErrorCode.NONE:
        raise refusal(error_code, message, what)


def raise_for_topic(error_code: int, what: str) -> None:
    """Raise BrokerError for a topic's error in a Metadata response, for any code but NONE. See `topic_refusal`."""
    if error_code != ErrorCode.NONE:
        raise topic_refusal(error_code, what)


def topic_refusal(error_code: int, what: str) -> BrokerError:
    """Return the BrokerError for a topic's error in a Metadata response.

    INVALID_REPLICATION_FACTOR is retriable here: a broker that has just started knows too few others to create a topic.
    """
    found = refusal(error_code, None, what)
    found.retriable |= error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    return found


def partition_refusal(error_code: int, partition: TopicPartition, count: int) -> BrokerError:
    """Return the BrokerError for a partition without a leader.

    `count`: how many partitions the topic has; 0: not known.
    """
    if error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and count:
        found = refusal(error_code, f"the topic has partitions 0 to {count - 1}", str(partition))
        found.hint = NO_SUCH_PARTITION
        return found
    return topic_refusal(error_code, str(partition))


def refusal(error_code: int, message: str | None = None, what: str = "") -> BrokerError:
    """Return the BrokerError that `raise_for` raises.

    A full stop at the end of the broker's message is cut off, because a hint or other errors may follow.
    """
    code = error_of(error_code)
    message = message.removesuffix(".") if message else None
    name = code.name if code == error_code else f"the unknown error code {error_code}"
    text = f"{name}: {message}" if message not in (None, name) else name
    return BrokerError(f"{what}: {text}" if what else text, code=code)
