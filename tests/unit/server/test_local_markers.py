"""Transaction markers that are written to this broker's logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.replication.acks import ReplicationWaits
from kbroker.server.local_markers import LocalMarkers
from kbroker.transactions.markers import Marker
from tests.kit.logs.home import LogHome
from tests.unit.storage.test_transactions import batch

AT = TopicPartition("t", 0)


@pytest.mark.parametrize(("client_version", "told"), [(0, ErrorCode.NONE), (2, ErrorCode.INVALID_PRODUCER_EPOCH)])
def test_what_the_client_speaks_decides_which_transaction_a_marker_ends(
    tmp_path: Path, client_version: int, told: ErrorCode
) -> None:
    log = LogHome(tmp_path).create()
    log.open()
    log.append(batch(7, 0, epoch=1), guard=log.verify(7, 1, 0))
    markers = LocalMarkers(cast(Any, None), cast(Any, {AT: log}), ReplicationWaits(), cast(Any, None))
    answers: list[ErrorCode] = []
    markers.write(AT, Marker(7, 1, 0, True, client_version), answers.append)
    assert answers == [told]
