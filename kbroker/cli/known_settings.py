"""Slips in the names of settings: an error or a warning names the setting that was probably meant."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from kbroker.client.errors import BrokerError
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.rules.nearest import nearest

TOPIC, BROKER, GROUP = "topic", "broker", "group"


def _known(kind: str) -> Collection[str]:
    if kind == TOPIC:
        from kbroker.cluster.topic_configs import TOPIC_CONFIGS

        return TOPIC_CONFIGS
    if kind == BROKER:
        from kbroker.config.definitions import ALIASES, SETTINGS
        from kbroker.config.not_read import NOT_READ

        return {*SETTINGS, *ALIASES, *NOT_READ}
    from kbroker.cluster.group_configs import GROUP_CONFIGS

    return GROUP_CONFIGS


@contextmanager
def unknown_settings_named(kind: str, names: Collection[str]) -> Iterator[None]:
    """A context manager around a change of settings of `kind`, which suggests the nearest name for each unknown one.

    If the broker refuses the change, the suggestions are in the KbrokerError; else they are warnings on stderr.
    """
    try:
        yield
    except BrokerError as error:
        if error.code not in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST) or "did you mean" in error.message:
            raise
        meant = _meant(kind, names)
        if not meant:
            raise
        raise KbrokerError(f"{error.message}; did you mean {', '.join(meant.values())}?") from None
    # A broker accepts unknown settings of its own, as plugins may read them, and the removal of any setting.
    for name, like in _meant(kind, names).items():
        print(f"kbroker: warning: {name} is no known setting of a {kind}; did you mean {like}?", file=sys.stderr)


def _meant(kind: str, names: Collection[str]) -> dict[str, str]:
    known = _known(kind)
    return {name: like for name in names if name not in known and (like := nearest(name, known))}
