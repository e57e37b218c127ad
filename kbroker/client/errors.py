"""What a client raises. Each error has a code, says whether to try again, and what to do.

`UsageError` and its kin are the caller's mistakes; `BrokerError` is what a broker answered; `ConnectionFailed` and
`TimedOut` are the network's; `MalformedAnswer` is a broker that does not keep to the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.errors import ErrorCode, KbrokerError
from kbroker.model import TopicPartition

RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Codes that may be gone when the same is tried again, with fresh metadata: those of Java's RetriableException."""

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

HINTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create the topic, or look for a slip in its name",
    ErrorCode.MESSAGE_TOO_LARGE: "send less at once, or raise the topic's max.message.bytes",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "names have 1 to 249 letters, digits, '.', '_' and '-'",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than the topic's min.insync.replicas asks for",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "an administrator has to grant the operation on the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "an administrator has to grant Read on the group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "an administrator has to grant the operation on the cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "an administrator has to grant Write on the transactional id",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "set sasl.mechanism to one of those the broker has enabled",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "look at sasl.username and sasl.password",
    ErrorCode.INVALID_PRODUCER_EPOCH: "another producer with this transactional.id has begun: close this one",
    ErrorCode.PRODUCER_FENCED: "another producer with this transactional.id has begun: close this one",
    ErrorCode.FENCED_INSTANCE_ID: "another consumer has this group.instance.id: close this one",
    ErrorCode.UNSUPPORTED_VERSION: "the broker is too old for this, or too new",
    ErrorCode.TOPIC_ALREADY_EXISTS: "choose another name, or alter the topic that is there",
    ErrorCode.INVALID_REPLICATION_FACTOR: "there are fewer brokers than replicas were asked for",
    ErrorCode.NON_EMPTY_GROUP: "stop the group's consumers first",
    ErrorCode.OFFSET_OUT_OF_RANGE: "seek to an offset that is there, or set auto.offset.reset",
}


FAILURES_TOLD = 3


class ClientError(KbrokerError):
    """Base of what a client raises. `code`: the protocol's; `retriable`: it may succeed later; `hint`: what to do."""

    retriable: bool = False
    hint: str = ""

    def __init__(self, message: str, *, code: ErrorCode | None = None, hint: str | None = None):
        if code is not None:
            self.code = code
            self.retriable = code in RETRIABLE
        self.hint = hint if hint is not None else self.hint or HINTS.get(self.code, "")
        self.message = message
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


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


class TimedOut(ClientError, TimeoutError):
    """What was asked for was not there within its time. The message says what was waited for."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True


class MalformedAnswer(ConnectionFailed):
    """A broker sent what does not parse; its connection was closed."""

    code = ErrorCode.CORRUPT_MESSAGE


class AuthenticationFailed(ClientError):
    """The broker does not know who we are, or we do not know who it is."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class UsageError(ClientError):
    """The client cannot do this at all, or not now: it is closed, was forked, or is called on its own thread."""

    code = ErrorCode.INVALID_REQUEST


class ClientClosed(UsageError):
    """The client is closed."""


class ForkedClient(UsageError):
    """The client was made by another process, before a fork."""


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


def refusal(error_code: int, message: str | None = None, what: str = "") -> BrokerError:
    """What `raise_for` raises."""
    code = error_of(error_code)
    name = code.name if code == error_code else f"the unknown error code {error_code}"
    text = f"{name}: {message}" if message and message != name else name
    return BrokerError(f"{what}: {text}" if what else text, code=code)
