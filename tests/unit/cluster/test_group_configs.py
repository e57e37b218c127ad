"""Settings of groups: what the broker's bounds make of them."""

from __future__ import annotations

import pytest

from kbroker.cluster.group_configs import effective_group_configs, validate_group_configs
from kbroker.errors import ConfigError

BROKER = {
    "group.consumer.session.timeout.ms": "100",
    "group.consumer.min.session.timeout.ms": "50",
    "group.consumer.max.session.timeout.ms": "200",
    "group.consumer.heartbeat.interval.ms": "90",
    "group.consumer.min.heartbeat.interval.ms": "1",
    "group.consumer.max.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "300",
    "group.consumer.min.assignment.interval.ms": "20",
    "group.consumer.max.assignment.interval.ms": "200",
}


def test_a_session_is_longer_than_the_heartbeats_that_keep_it_alive_are_apart() -> None:
    validate_group_configs({"consumer.session.timeout.ms": "91"}, BROKER.get)
    wrong: list[dict[str, str]] = [
        {"consumer.session.timeout.ms": "90"},
        {"consumer.heartbeat.interval.ms": "100"},
        {"consumer.session.timeout.ms": "150", "consumer.heartbeat.interval.ms": "150"},
    ]
    for configs in wrong:
        with pytest.raises(ConfigError, match=r"must be greater than consumer.heartbeat.interval.ms"):
            validate_group_configs(configs, BROKER.get)


def test_what_the_broker_does_not_allow_any_more_is_brought_within(caplog: pytest.LogCaptureFixture) -> None:
    own = {
        "consumer.session.timeout.ms": "49",
        "consumer.heartbeat.interval.ms": "201",
        "consumer.assignment.interval.ms": "19",
    }
    assert effective_group_configs("g", own, BROKER.get) == {
        "consumer.session.timeout.ms": 50,
        "consumer.heartbeat.interval.ms": 200,
        "consumer.assignment.interval.ms": 20,
    }
    assert "group 'g' has consumer.session.timeout.ms=49, but the broker allows 50 to 200" in caplog.text
    assert effective_group_configs("g", {"consumer.session.timeout.ms": "60"}, BROKER.get) == {
        "consumer.session.timeout.ms": 60
    }
