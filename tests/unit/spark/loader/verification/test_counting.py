"""Which task counts which files."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kbroker.spark.loader.commits.commit import LakeFile
from kbroker.spark.loader.plans.work_units import LEAST_SIZE
from kbroker.spark.loader.verification.counting import shared_out

FILE = LakeFile("", "", "topic", 0, 1, 0, 0, 0, ())


@given(st.lists(st.integers(0, 3 * LEAST_SIZE)), st.integers(1, 6 * LEAST_SIZE))
def test_each_file_is_in_one_share_and_shares_are_not_too_large(sizes: list[int], target: int) -> None:
    files = [replace(FILE, path=str(number), size=size) for number, size in enumerate(sizes)]
    found = list(shared_out(files, target))
    assert [file for share in found for file in share] == files
    weights = [[max(file.size, LEAST_SIZE) for file in share] for share in found]
    assert all(share and (len(share) == 1 or sum(share) <= target) for share in weights)
    assert all(sum(share) + after[0] > target for share, after in itertools.pairwise(weights))


def test_a_year_of_small_files_is_not_a_task_each() -> None:
    files = [replace(FILE, size=2000)] * 500_000
    assert len(list(shared_out(files, 256 << 20))) == 123
