"""What a test orders to go wrong between clients and a broker (`Broker(faults=True).faults`)."""

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
    """What is done with one request. `drops_answer`: the broker handles it, the client does not hear of it."""

    delay_s: float = 0.0
    code: ErrorCode | None = None
    drops_request: bool = False
    drops_answer: bool = False


class Fault:
    """One order. `struck` says how many requests it has hit so far."""

    def __init__(self, api: ApiKey, treatment: Treatment, times: int | None, after: int):
        self.api = api
        self.after = after
        """How many requests pass first."""
        self.treatment = treatment
        self.left = times
        """How many more it will hit; None: all, until it is cleared."""
        self.struck = 0

    def lets_pass(self) -> bool:
        """One request more, or not. It counts."""
        self.after -= 1
        return self.after >= 0

    def __repr__(self) -> str:
        left = "no end" if self.left is None else f"{self.left} left"
        return f"<Fault {self.api.label} {self.treatment}: struck {self.struck}, {left}>"


class Faults:
    """Orders hold for all connections through the broker's address, from when a call returns; any thread may give them.

    APIs by their names in the protocol guide ("Produce", "FindCoordinator"), codes by theirs
    ("NOT_LEADER_OR_FOLLOWER"). Of several orders for one API the earliest holds; a delay goes with any other.
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
        """The next requests of `api`, or those `after` so many, are answered with `code`, and do not reach the broker.

        As Kafka answers a request that fails as a whole: each of its topics, partitions, groups has the code, or the
        top has. Produce with acks=0 has no answer: its connection is dropped, as Kafka does.
        """
        found = _named(ErrorCode, code, {each.name: each for each in ErrorCode})
        return self._add(api, Treatment(code=found), times, after)

    def delay(self, api: str | ApiKey, seconds: float, times: int | None = None, *, after: int = 0) -> Fault:
        """The answers of `api` come later than the broker gives them, and so do those behind them on a connection."""
        if seconds <= 0:
            raise ValueError(f"a delay of {seconds} s")
        return self._add(api, Treatment(delay_s=seconds), times, after)

    def drop(self, api: str | ApiKey, times: int | None = 1, *, handled: bool = False, after: int = 0) -> Fault:
        """The connection that the next request of `api` comes on is dropped instead of an answer.

        The request does not reach the broker, or, with `handled`, is done and only its answer is lost.
        """
        return self._add(api, Treatment(drops_request=not handled, drops_answer=handled), times, after)

    def drop_connections(self) -> int:
        """All that are open, now; returns how many they were."""
        return self._drop_connections()

    def drop_new_connections(self, times: int = 1) -> None:
        """The next ones, as soon as they are made."""
        with self._lock:
            self._new_connections_to_drop = times

    def refuse_connections(self) -> None:
        """No new ones, as if nobody listened, until `accept_connections`. Those that are open go on."""
        self._set_refusing(True)

    def accept_connections(self) -> None:
        self._set_refusing(False)

    def clear(self) -> None:
        """No order holds any more."""
        with self._lock:
            self._faults.clear()
            self._new_connections_to_drop = 0
        self._set_refusing(False)

    def seen(self, api: str | ApiKey) -> int:
        """How many requests of `api` clients have sent, those that were hit included."""
        with self._lock:
            return self._seen[_api(api)]

    # --- questions of the proxy --------------------------------------------------------------------------
    def treatment_of(self, api_key: int) -> Treatment:
        """Of one request that has come. It counts."""
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
        """Whether one that has just been made is to be dropped. It counts."""
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
