"""The number of member ids that were given out and not used is limited, for each host and over all."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kbroker.groups import given_ids
from kbroker.groups.given_ids import GivenId, GivenIds


def given(name: str) -> GivenId:
    return GivenId(cast(Any, None), "group", name)


def test_a_host_that_takes_too_many_loses_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_ids, "MOST_GIVEN_IDS_OF_A_HOST", 3)
    ids = GivenIds()
    assert ids.add("quiet", given("q")) is None
    lost = [ids.add("greedy", given(f"g{each}")) for each in range(6)]
    assert lost == [None, None, None, given("g0"), given("g1"), given("g2")]


def test_of_too_many_hosts_the_one_that_was_silent_for_longest_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_ids, "MOST_GIVEN_IDS", 3)
    ids = GivenIds()
    for host in ("a", "b", "a"):
        assert ids.add(host, given(host)) is None
    assert ids.add("c", given("c")) == given("b")
    assert ids.add("d", given("d")) == given("a")
