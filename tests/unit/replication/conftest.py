from __future__ import annotations

import pytest

from tests.kit.models.replica_logs import ModelLogs
from tests.kit.parts.members import Member


@pytest.fixture
def logs() -> ModelLogs:
    return ModelLogs()


@pytest.fixture
def member(logs: ModelLogs) -> Member:
    """A member that knows brokers 1, 2 and 3 as alive."""
    member = Member(logs)
    member.tell_brokers(1, 2, 3)
    return member
