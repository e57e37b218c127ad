"""Requests of every served API and version that ask for as much as the schemas allow stay within the bounds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from kbroker.protocol.api import SERVED, ApiKey
from tests.amplification.bounds import limit_above, limit_of
from tests.amplification.figures import NO_LIMIT, Figures
from tests.amplification.furnished_broker import FurnishedBroker
from tests.amplification.furnishing import Furnisher
from tests.amplification.naming import RESTORED, given_for, variants_of
from tests.amplification.shapes import Numbered, Repeated, Shape, numbered_arrays, shapes_of
from tests.kit.wire.collisions import PLAIN, colliding_in_a_dict

ENOUGH = 3
"""The number of findings after which no more shapes of an API are tried."""
SMALL, LARGE, LARGEST = 64 << 10, 1 << 20, 16 << 20


@pytest.fixture(scope="module")
def broker() -> Iterator[FurnishedBroker]:
    made = FurnishedBroker()
    yield made
    made.discard()


def findings(broker: FurnishedBroker, shapes: Iterator[tuple[Shape, dict[str, object]]], size: int) -> list[str]:
    """Return a line for each shape that costs too much."""
    found = []
    for shape, variant in shapes:

        def build(furnisher: Furnisher, shape: Shape = shape, variant: dict[str, object] = variant) -> list[bytes]:
            if shape.api_key in RESTORED:
                getattr(furnisher, RESTORED[shape.api_key])()
            return [shape.build(given_for(shape.api_key, furnisher) | variant, size)]

        what = broker.finding(build, partial(limit_of, shape.api_key))
        if what is not None:
            found.append(f"{shape} {variant or ''}: {what}")
            if len(found) == ENOUGH:
                break
    return found


def all_shapes(api_key: ApiKey, versions: range) -> Iterator[tuple[Shape, dict[str, object]]]:
    """Return all shapes: arrays with each of the values that the fields around them may have, and one of all else."""
    for version in versions:
        for variant in variants_of(api_key, version):
            for shape in shapes_of(api_key, version):
                if not variant or is_repeated(shape, "same", "unknown", "empty"):
                    yield shape, variant


def repeated_names(api_key: ApiKey, versions: range) -> Iterator[tuple[Shape, dict[str, object]]]:
    for version in versions:
        for shape in shapes_of(api_key, version):
            if is_repeated(shape, "same"):
                yield shape, {}


def is_repeated(shape: Shape, *fillings: str) -> bool:
    return isinstance(shape.build, Repeated) and shape.build.filling in fillings


@pytest.mark.parametrize("api_key", SERVED, ids=lambda key: key.label)
def test_the_newest_version_costs_what_it_weighs(broker: FurnishedBroker, api_key: ApiKey) -> None:
    newest = SERVED[api_key].max
    assert not findings(broker, all_shapes(api_key, range(newest, newest + 1)), SMALL)


@pytest.mark.parametrize("api_key", SERVED, ids=lambda key: key.label)
def test_in_older_versions_a_name_said_again_and_again_costs_what_it_weighs(
    broker: FurnishedBroker, api_key: ApiKey
) -> None:
    assert not findings(broker, repeated_names(api_key, range(SERVED[api_key].min, SERVED[api_key].max)), SMALL)


@pytest.mark.parametrize(
    "shape",
    [one for key in SERVED for one in numbered_arrays(key).values()],
    ids=lambda one: f"{one.api_key.label}-{one.path}",
)
def test_numbers_cannot_be_chosen_so_that_they_meet_in_a_table(broker: FurnishedBroker, shape: Numbered) -> None:
    """Compared with as many other numbers of the same size. A table's key that a request chooses is a `number_key`."""

    def weigh(broker: FurnishedBroker) -> tuple[Figures, Figures]:
        plain, colliding = (
            broker.scales.weigh([shape(given_for(shape.api_key, broker.furnisher), numbers)], NO_LIMIT)
            for numbers in (PLAIN, colliding_in_a_dict())
        )
        return colliding, limit_above(plain)

    finding = broker.finding_of(weigh)
    assert finding is None, finding


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("api_key", SERVED, ids=lambda key: key.label)
def test_older_versions_cost_what_they_weigh(broker: FurnishedBroker, api_key: ApiKey) -> None:
    older = range(SERVED[api_key].min, SERVED[api_key].max)
    assert not findings(broker, all_shapes(api_key, older), SMALL)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("api_key", SERVED, ids=lambda key: key.label)
def test_large_requests_cost_what_they_weigh(broker: FurnishedBroker, api_key: ApiKey) -> None:
    newest = SERVED[api_key].max
    shapes = all_shapes(api_key, range(newest, newest + 1))
    large = (one for one in shapes if is_repeated(one[0], "same", "unknown", "empty"))
    assert not findings(broker, large, LARGE)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("api_key", SERVED, ids=lambda key: key.label)
def test_the_largest_requests_cost_what_they_weigh(broker: FurnishedBroker, api_key: ApiKey) -> None:
    newest = SERVED[api_key].max
    shapes = ((one, {}) for one in shapes_of(api_key, newest) if is_repeated(one, "same", "empty"))
    assert not findings(broker, shapes, LARGEST)
