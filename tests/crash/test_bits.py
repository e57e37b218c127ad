"""A share of `make bits`, and all of it."""

import pytest

from tests.crash.bit_rounds import IN_ROOT, run

ROUNDS = 2
PARTITIONS = 24

stops = pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a kill"])


@pytest.mark.timeout(180)
@stops
def test_no_flipped_bit_deletes_hides_or_invents_anything(clean: bool) -> None:
    assert run(clean=clean, rounds=ROUNDS, seed=clean, many=PARTITIONS) == ROUNDS * (PARTITIONS + len(IN_ROOT))


@pytest.mark.slow
@pytest.mark.timeout(5400)
@stops
def test_no_bit_of_any_small_file_does_when_each_is_flipped(clean: bool) -> None:
    assert run(clean=clean, rounds=None, seed=clean) > 10_000
