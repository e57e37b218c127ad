"""A share of `make crash`."""

import pytest

from tests.crash.kill_rounds import run


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "overrides",
    [{}, {"log.flush.interval.messages": 1}, {"log.segment.bytes": 1048576}],
    ids=["default", "durable", "small segments"],
)
def test_nothing_acknowledged_is_lost_when_the_broker_is_killed(overrides: dict[str, object]) -> None:
    assert run(rounds=4, seed=7, overrides=overrides) > 1000
