"""A share of the client rounds, and that they can fail."""

import logging
from collections.abc import Iterator

import pytest

from tests.crash.client_rounds import run


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Keep the client's log quiet: it has a line for every fault."""
    logger = logging.getLogger("kbroker.client")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.mark.timeout(300)
def test_clients_lose_nothing_and_do_nothing_twice_whatever_happens_to_the_broker() -> None:
    result = run(seed=1, steps=8)
    assert not result.wrong, str(result)
    assert result.ledger.count > 1000


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mistake", "faults", "found"),
    [
        ("no sequences", ["lose_answers"], "in-"),
        ("careless movers", ["cut_connections"], "out-"),
        ("forgetful members", ["exchange_member"], "not read"),
    ],
)
def test_what_clients_do_wrong_is_found(mistake: str, faults: list[str], found: str) -> None:
    for seed in range(1, 6):  # whether a seed shows it depends on timing
        result = run(seed, steps=6, faults=faults, mistake=mistake)
        if result.wrong:
            break
    assert any(found in line for line in result.wrong), str(result)
