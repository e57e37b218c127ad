"""Computes the result of a request to change configs: the rules of AlterConfigs and IncrementalAlterConfigs (KIP-339).

Pure functions: current configs and wishes in, the new configs out, or the ProtocolError that Kafka gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.rules.config_values import Kind


class Op(IntEnum):
    """An operation on one config. On the wire. Do not renumber."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Wish(NamedTuple):
    """One config to change. `operation` is as in the request, so it may not be an `Op`."""

    name: str
    operation: int
    value: str | None


def check_wishes(wishes: Sequence[Wish]) -> None:
    """Raise ProtocolError if wishes are wrong for any resource: a name twice, a missing value, an unknown operation."""
    if len({wish.name for wish in wishes}) < len(wishes):
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [wish.name for wish in wishes if wish.value is None and wish.operation != Op.DELETE]
    if nulls:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Null value not supported for : " + ",".join(nulls))
    unknown = next((wish for wish in wishes if wish.operation not in tuple(Op)), None)
    if unknown is not None:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{unknown.operation} is no operation on config {unknown.name}")


def apply_wishes(
    current: Mapping[str, str],
    wishes: Sequence[Wish],
    kind_of: Callable[[str], Kind | None],
    inherited: Callable[[str], str],
    refusal: Callable[[Wish], str],
) -> dict[str, str]:
    """Return `current` with `wishes` carried out.

    `inherited` returns the value of a list config that is not in `current`. Raises ProtocolError, with the text from
    `refusal`, for APPEND or SUBTRACT on a config that is not a list.
    """
    result = dict(current)
    for name, operation, value in wishes:
        if operation == Op.DELETE:
            result.pop(name, None)
            continue
        assert value is not None, (name, operation)
        if operation == Op.SET:
            result[name] = value
            continue
        if kind_of(name) is not Kind.LIST:
            raise ProtocolError(ErrorCode.INVALID_CONFIG, refusal(Wish(name, operation, value)))
        items = _items(result[name] if name in result else inherited(name))
        for item in value.split(","):
            item = item.strip()
            if operation == Op.APPEND and item not in items:
                items.append(item)
            elif operation == Op.SUBTRACT and item in items:
                items.remove(item)
        result[name] = ",".join(items)
    return result


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


def list_refusal(wish: Wish) -> str:
    return f"Can't {Op(wish.operation).name} to key {wish.name} because its type is not LIST."


def broker_list_refusal(wish: Wish) -> str:
    return f"Config value {Op(wish.operation).name.lower()} is not allowed for config key: {wish.name}"
