"""A coordinator on partitions in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kit.parts.transactions import TransactionHome


@pytest.fixture
def make_home() -> Callable[..., TransactionHome]:
    return TransactionHome


@pytest.fixture
def home() -> TransactionHome:
    return TransactionHome()
