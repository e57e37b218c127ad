"""Faults between clients and a broker, as a test orders them (`Broker(faults=True).faults`)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, TypeVar

from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.error_responses import BUILDERS
from kbroker.rules.nearest import nearest

Name = TypeVar("Name", bound=IntEnum)


class Treatment(NamedTuple):
    """What is done with one request.

    `drops_request`: the broker does not get it. `drops_answer`: the broker handles it, but the client gets no answer.
    """

    delay_s: float = 0.0
    code: ErrorCode | None = None
    drops_request: bool = False
    drops_answer: bool = False


class Fault:
    """A fault that a test has ordered. `struck` says how many requests it has hit so far."""

    def __init__(self, api: ApiKey, treatment: Treatment, times: int | None, after: int):
        self.api = api
        self.after = after
        """How many more requests pass before the first one is hit."""
        self.treatment = treatment
        self.left = times
        """How many more requests it will hit; None: all, until `Faults.clear`."""
        self.struck = 0

    def lets_pass(self) -> bool:
        """Return whether one more request passes, and count it."""
        self.after -= 1
        return self.after >= 0

    def __repr__(self) -> str:
        left = "no end" if self.left is None else f"{self.left} left"
        return f"<Fault {self.api.label} {self.treatment}: struck {self.struck}, {left}>"


class Faults:
    """Takes a test's orders of faults. Any thread may give them.

    An order holds from when the call returns, for all connections through the broker's address. APIs and error codes
    have their names in the protocol guide: "Produce", "FindCoordinator"; "NOT_LEADER_OR_FOLLOWER". Of several orders
    for one API the earliest holds; a delay is combined with an order of another kind.

    Orders raise ValueError for a name that does not exist and for a number that is out of range.
    """

    def __init__(self, drop_connections: Callable[[], int], set_refusing: Callable[[bool], None]):
        self._drop_connections = drop_connections
        self._set_refusing = set_refusing
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._seen: Counter[int] = Counter()
        self._new_connections_to_drop = 0

    # --- orders of a test --------------------------------------------------------------------------------
    def error(self, api: str | ApiKey, code: str | ErrorCode, times: int | None = 1, *, after: int = 0) -> Fault:
        """Answer the next `times` requests of `api` with `code`; they do not reach the broker.

        `times` None: all, until `clear`. `after`: so many requests pass first. The answer is Kafka's for a request that
        fails as a whole: each of its topics, partitions or groups has the code, or the response itself has it. Produce
        with acks=0 has no answer: its connection is dropped, as Kafka does.

        Raises ValueError also for an API that kbroker does not serve.
        """
        found = _named(ErrorCode, code, {each.name: each for each in ErrorCode})
        return self._add(api, Treatment(code=found), times, after)

    def delay(self, api: str | ApiKey, seconds: float, times: int | None = None, *, after: int = 0) -> Fault:
        """Deliver the broker's answers to `api` later by `seconds`. Answers behind them on the connection are late too.

        `times` and `after`: see `error`.
        """
        if seconds <= 0:
            raise ValueError(f"a delay of {seconds} s")
        return self._add(api, Treatment(delay_s=seconds), times, after)

    def drop(self, api: str | ApiKey, times: int | None = 1, *, handled: bool = False, after: int = 0) -> Fault:
        """Drop the connection that the next request of `api` comes on, instead of an answer.

        The request does not reach the broker. With `handled` the broker handles it, and only the answer is lost.
        `times` and `after`: see `error`.
        """
        return self._add(api, Treatment(drops_request=not handled, drops_answer=handled), times, after)

    def drop_connections(self) -> int:
        """Drop all connections that are open now, and return their number."""
        return self._drop_connections()

    def drop_new_connections(self, times: int = 1) -> None:
        """Drop the next `times` new connections as soon as they are made."""
        with self._lock:
            self._new_connections_to_drop = times

    def refuse_connections(self) -> None:
        """Refuse new connections, as if nobody listened, until `accept_connections`. Open connections go on."""
        self._set_refusing(True)

    def accept_connections(self) -> None:
        """Accept connections again after `refuse_connections`."""
        self._set_refusing(False)

    def clear(self) -> None:
        """Withdraw all orders: requests are treated as usual again."""
        with self._lock:
            self._faults.clear()
            self._new_connections_to_drop = 0
        self._set_refusing(False)

    def seen(self, api: str | ApiKey) -> int:
        """Return how many requests of `api` clients have sent, including those that an order has hit."""
        with self._lock:
            return self._seen[_api(api)]

    # --- questions of the proxy --------------------------------------------------------------------------
    def treatment_of(self, api_key: int) -> Treatment:
        """Return what to do with a request that has come, and count it."""
        with self._lock:
            self._seen[api_key] += 1
            holding = [fault for fault in self._faults if fault.api == api_key and not fault.lets_pass()]
            delays = [fault for fault in holding if fault.treatment.delay_s][:1]
            outcomes = [fault for fault in holding if not fault.treatment.delay_s][:1]
            for fault in delays + outcomes:
                self._strike_locked(fault)
            treatment = outcomes[0].treatment if outcomes else Treatment()
            if delays:
                treatment = treatment._replace(delay_s=delays[0].treatment.delay_s)
            return treatment

    def drops_new_connection(self) -> bool:
        """Return whether to drop a connection that has just been made, and count it."""
        with self._lock:
            if self._new_connections_to_drop == 0:
                return False
            self._new_connections_to_drop -= 1
            return True

    def _add(self, api: str | ApiKey, treatment: Treatment, times: int | None, after: int) -> Fault:
        if times is not None and times < 1:
            raise ValueError(f"{times} times")
        if after < 0:
            raise ValueError(f"after {after} requests")
        fault = Fault(_api(api), treatment, times, after)
        if treatment.code is not None and fault.api not in BUILDERS:
            raise ValueError(f"{fault.api.label} is not served, so there is no error answer of it")
        with self._lock:
            self._faults.append(fault)
        return fault

    def _strike_locked(self, fault: Fault) -> None:
        fault.struck += 1
        if fault.left is not None:
            fault.left -= 1
            if fault.left == 0:
                self._faults.remove(fault)


def _api(name: str | ApiKey) -> ApiKey:
    return _named(ApiKey, name, {each.label: each for each in ApiKey})


def _named(kind: type[Name], name: str | Name, known: dict[str, Name]) -> Name:
    if not isinstance(name, str):
        return kind(name)
    found = known.get(name)
    if found is None:
        like = nearest(name, known)
        raise ValueError(f"{name!r} is no {kind.__name__}" + (f"; did you mean {like!r}?" if like else ""))
    return found
