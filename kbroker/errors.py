"""Exceptions, grouped by whose fault they are, and the Kafka protocol's error codes.

The type alone tells a handler what to do:

* `BadInput`: the peer sent something that is not allowed or cannot be read;
* `NotNow`: the request is right, but this server cannot serve it at the moment (often retriable);
* `DiskDamaged`: bytes on disk are not what they should be;
* `ClientError`: what a client tells its user (its subclasses are in `client/errors.py`);
* anything else (`AssertionError`, `RuntimeError`): a bug in kbroker.

`ErrorCode` lists the codes of https://kafka.apache.org/protocol#protocol_error_codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class ErrorCode(IntEnum):
    """The protocol's error codes. On the wire. Do not renumber."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128


LONGEST_CLIENT_MESSAGE = 4096
"""In characters: the text fits into a string of the protocol however many bytes each character takes in UTF-8."""


def client_text(text: str) -> str:
    """Return `text`, cut to LONGEST_CLIENT_MESSAGE: a text may quote more of a request than an answer has room for."""
    return text if len(text) <= LONGEST_CLIENT_MESSAGE else text[: LONGEST_CLIENT_MESSAGE - 3] + "..."


class KbrokerError(Exception):
    """Base of all exceptions that kbroker raises on purpose."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    @property
    def client_message(self) -> str | None:
        """The error message for the client, which a response that has a field for it carries; None: no text."""
        return client_text(str(self))


class BadInput(KbrokerError):
    """Raised when something from outside cannot be accepted. Nothing was changed."""

    code = ErrorCode.INVALID_REQUEST


class MalformedBytes(BadInput):
    """Raised when bytes from a peer do not parse: they are too short, or have wrong lengths or unknown tags.

    `position` is the place in bytes; -1: not known.
    """

    def __init__(self, message: str, position: int = -1):
        super().__init__(message if position < 0 else f"{message} at byte {position}")
        self.position = position


class ProtocolError(BadInput):
    """Raised to refuse a request with one of the protocol's codes; `str()` is the error message for the client."""

    def __init__(self, code: ErrorCode, message: str | None = None):
        self.message = client_text(message) if message else message
        super().__init__(self.message or code.name)
        self.code = code

    @property
    def client_message(self) -> str | None:
        return self.message


class AnswerTooLarge(ProtocolError):
    """Raised when a request asks for more than a response may hold."""


class NotNow(KbrokerError):
    """Raised when a request is right but cannot be served at the moment."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class StorageFailed(NotNow):
    """Raised when a log directory refuses an operation (full, read-only, I/O error) or is offline."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class DiskDamaged(KbrokerError):
    """Raised when bytes on disk are not what they should be.

    The message names the file `path`, the `position` in bytes (-1: none), `what` is wrong, and what can be done.
    """

    code = ErrorCode.KAFKA_STORAGE_ERROR

    def __init__(self, path: str, position: int, what: str, advice: str = ""):
        place = f" at byte {position}" if position >= 0 else ""
        super().__init__(f"{path}: {what}{place}" + (f"; {advice}" if advice else ""))
        self.path = path
        self.position = position
        self.what = what


class ConfigError(KbrokerError):
    """Raised when a setting is malformed or contradicts another. The message names it and says what is allowed."""


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
"""Codes after which a retry, with fresh metadata, may succeed: those of Java's RetriableException."""

HINTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create the topic, or look for a slip in its name",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "a broker begins, or cannot make the topic for it: the brokers' logs say why",
    ErrorCode.MESSAGE_TOO_LARGE: "send less at once, or raise the topic's max.message.bytes",
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker cannot write: its disk is full or has failed, its log says which",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "names have 1 to 249 letters, digits, '.', '_' and '-'; '.' is as good as '_'",
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


class ClientError(KbrokerError):
    """Base of the exceptions of clients.

    `code`: the protocol's error code. `retriable`: whether the same call may succeed later. `hint`: what to do, or "".
    """

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

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickle and copy, which would otherwise call `__init__` with the message alone."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[ClientError], arguments: tuple[Any, ...], values: Mapping[str, Any]) -> ClientError:
    """Return the ClientError that its `__reduce__` has taken apart."""
    made = kind.__new__(kind, *arguments)
    made.__dict__.update(values)
    return made


class UsageError(ClientError):
    """Raised when the caller asks for what a client cannot do at all, or not now.

    For example when it is closed, when it was made before a fork, or when a blocking call is made on its own thread.
    """

    code = ErrorCode.INVALID_REQUEST


class ForkedClient(UsageError):
    """Raised when a client is used in a child process, after a fork."""

    hint = "make a client in each process, after the fork"


class TimedOut(ClientError, TimeoutError):
    """Raised when what was asked for is not done in time. The message says what was waited for."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True
