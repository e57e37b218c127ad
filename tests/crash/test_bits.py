"""A share of `make bits`."""

import pytest

from tests.crash.bit_rounds import PARTITIONS, run


@pytest.mark.timeout(180)
@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a kill"])
def test_no_flipped_bit_deletes_hides_or_invents_anything(clean: bool) -> None:
    assert run(clean=clean, rounds=3, seed=clean) == 3 * (PARTITIONS + 1)
