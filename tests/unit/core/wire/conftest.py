"""Apache Kafka's own classes, for the modules that compare with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.kafka.batches import KafkaBatches
from tests.kit.kafka.maven import MavenFailed


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaBatches]:
    try:
        started = KafkaBatches()
    except (MavenFailed, FileNotFoundError) as missing:
        pytest.skip(str(missing))
    with started:
        yield started
