"""The names in a request, each used once."""

from __future__ import annotations

import random

import pytest

from kbroker.server.handlers.shared import naming
from kbroker.server.handlers.shared.naming import each_once, in_order


def test_each_is_there_once_in_the_order_of_its_first_coming() -> None:
    assert list(each_once("banana")) == ["b", "a", "n"]


def test_names_are_sorted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "SORTED_AT_ONCE", 8)
    drawn = random.Random(3)
    for count in (0, 1, 8, 9, 100):
        names = [str(drawn.randrange(60)) for _ in range(count)]
        assert in_order(names) == sorted(set(names))
