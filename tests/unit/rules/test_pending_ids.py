"""Member ids that were given away: each is forgotten in its time, and no step looks at all of them."""

from __future__ import annotations

import random

from kbroker.rules.group_state import NEVER
from kbroker.rules.pending_ids import STALE_KEPT, PendingIds


def test_ids_are_forgotten_in_the_order_of_their_deadlines() -> None:
    pending = PendingIds()
    drawn = random.Random(7)
    model: dict[str, int] = {}
    for number in range(2000):
        name, due = str(drawn.randrange(300)), number + drawn.randrange(100)
        if drawn.random() < 0.6:
            pending.add(name, due)
            model[name] = due
        else:
            assert pending.discard(name) == (model.pop(name, None) is not None)
        late = [name for name, due in model.items() if due <= number]
        assert pending.take_due(number) == len(late)
        for name in late:
            del model[name]
        assert dict(pending) == model
        assert pending.next_ms == min(model.values(), default=NEVER)


def test_what_is_kept_of_ids_that_are_gone_is_bounded() -> None:
    pending = PendingIds()
    for number in range(10_000):
        pending.add(str(number), 10**9 + number)
        if number >= 100:
            pending.discard(str(number - 100))
    assert len(pending) == 100
    assert len(pending._order) <= 200 + STALE_KEPT


class Counted(int):
    """A deadline that counts how often it is compared."""

    comparisons = 0

    def __le__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) <= other

    def __lt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) < int(other)


def test_a_step_does_not_look_at_all_ids() -> None:
    pending = PendingIds()
    count = 5000
    for number in range(count):
        pending.add(str(number), Counted(number))
    Counted.comparisons = 0
    for now in range(count):
        assert pending.take_due(now) == 1
    assert Counted.comparisons < count * 40
