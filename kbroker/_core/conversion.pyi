from collections.abc import Iterator

from typing_extensions import Buffer

from kbroker._core.message_set import Message, MessageSetBuilder, SetInfo
from kbroker._core.record_batch import BatchInfo
from kbroker._core.records import RecordsBuilder

def batch_of_messages(
    buffer: Buffer,
    *,
    wrapper: Message | None = None,
    partial: bool = False,
    log_append_time_ms: int | None = None,
    key_required: bool = False,
    limit: int = ...,
) -> tuple[RecordsBuilder, SetInfo]: ...
def message_sets_of_batch(
    batch: BatchInfo, payload: Buffer, magic: int, *, start_offset: int = 0, limit: int = ...
) -> Iterator[MessageSetBuilder]: ...
def older_messages(buffer: Buffer, *, wrapper: Message | None = None, start_offset: int = 0) -> MessageSetBuilder: ...
