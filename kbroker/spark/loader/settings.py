"""The settings of a load: plain values that go to the tasks as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from kbroker.spark.errors import WrongOption
from kbroker.spark.options.format_options import BINARY
from kbroker.spark.options.kafka_options import isolation_of

EVENT, ARRIVAL = "event", "arrival"
FAIL, CONTINUE = "fail", "continue"

WORDS = {
    "time": (EVENT, ARRIVAL),
    "data_loss": (FAIL, CONTINUE),
    "compression": ("none", "snappy", "gzip", "brotli", "lz4", "zstd"),
}
KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "pattern": ((re.Pattern, NoneType), "a compiled pattern"),
    "headers": (bool, "true or false"),
    "group": ((str, NoneType), "a name"),
    "audit_topic": ((str, NoneType), "a name"),
    "formats": (Mapping, "a mapping"),
}
LEAST_NUMBERS = {"start": -2, "reload_since_ms": 0, "task_bytes": 1, "commit_bytes": 1, "lateness_ms": 0}


@dataclass(frozen=True)
class Settings:
    """The settings of a load. Times are in ms, sizes in bytes. `client`: options of kbroker.client, with dots."""

    lake: str
    client: Mapping[str, Any]
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    filesystem: Any = None
    """A pyarrow.fs.FileSystem in which `lake` is a path. None: `lake` is a directory or a URI."""
    time: str = EVENT
    """The hour to which a record belongs: EVENT, that of its timestamp; ARRIVAL, that of the load."""
    start: int = -2
    """Where to begin in a topic that was never loaded: EARLIEST (-2), LATEST (-1), or a time."""
    reload_since_ms: int | None = None
    data_loss: str = FAIL
    headers: bool = True
    compression: str = "zstd"
    """The codec of the files: none, snappy, gzip, brotli, lz4 or zstd."""
    compression_level: int | None = None
    """None: pyarrow's default for the codec, which is 1 for zstd."""
    task_bytes: int = 256 << 20
    commit_bytes: int = 64 << 30
    lateness_ms: int = 600_000
    """An hour is complete once each partition of its topic was read up to this long after the hour's end."""
    poll_timeout_s: float = 120.0
    group: str | None = None
    """A group for which the loaded offsets are committed too, for tools that watch lag."""
    audit_topic: str | None = None
    """The audit with which `verify` compares. Loads by event time write to it what they have loaded."""
    formats: Mapping[str, str] = field(default_factory=dict)
    """Options valueFormat, valueSchema, schemaRegistry and avroFraming of format("kbroker"), to decode values."""

    @property
    def isolation(self) -> str:
        return isolation_of(self.client)

    @property
    def value_format(self) -> str:
        return self.formats.get("valueFormat", BINARY)

    def __post_init__(self) -> None:
        """Raises WrongOption when a value is of another kind, or topics and a pattern are both given."""
        if wrong := [name for name in self.topics if not isinstance(name, str)]:
            raise WrongOption(f"topics={wrong[0]!r}: must be names, or one compiled pattern")
        for name, (kind, what) in KINDS.items():
            if not isinstance(value := getattr(self, name), kind):
                raise WrongOption(f"{name}={value!r}: must be {what}")
        if self.topics and self.pattern is not None:
            raise WrongOption("topics and pattern: only one of them may say what is loaded")
        for name, words in WORDS.items():
            if (word := getattr(self, name)) not in words:
                raise WrongOption(f"{name}={word!r}: must be one of {', '.join(words)}")
        for name, least in LEAST_NUMBERS.items():
            number = getattr(self, name)
            if number is not None and not (isinstance(number, int) and number >= least):
                raise WrongOption(f"{name}={number!r}: must be a whole number, {least} or more")
