"""Names and addresses, asked for without holding up the client's thread."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger("kbroker.client")


async def addresses_of(host: str, port: int) -> list[tuple[int, Any]]:
    """(family, address) of a name, each once. OSError when there is none."""
    with contextlib.suppress(ValueError):
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        return [(family, (host, port))]
    found = await _asked(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys((family, target) for family, _, _, _, target in found))


async def canonical(servers: Iterable[tuple[str, int]], timeout_s: float) -> tuple[tuple[str, int], ...]:
    """The names that the addresses of these have themselves, as Kerberos and certificates may want them.

    An address without a name stays one; a server that cannot be resolved stays as it was, for connecting to say why.
    """
    found: dict[tuple[str, int], None] = {}
    for host, port in servers:
        try:
            async with asyncio.timeout(timeout_s):
                for _, target in await addresses_of(host, port):
                    found[await _asked(partial(_name_of, target[0])), port] = None
        except OSError as error:
            log.debug("%s is not resolved: %s", host, error)
            found[host, port] = None
    return tuple(found)


def _name_of(address: str) -> str:
    """Only a name that leads back to the address is believed."""
    try:
        name = socket.gethostbyaddr(address)[0]
        if any(target[0] == address for *_, target in socket.getaddrinfo(name, None)):
            return name
    except (OSError, UnicodeError):
        pass
    return address


async def _asked(function: Callable[[], T]) -> T:
    """What it returns, in a thread of its own that nobody waits for: a resolver may take minutes, and cannot be
    interrupted."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def deliver(result: Any, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    def ask() -> None:
        result, failed = None, None
        try:
            result = function()
        except (OSError, ValueError) as error:  # of a name that is none
            failed = error if isinstance(error, OSError) else OSError(0, str(error))
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, result, failed)

    threading.Thread(target=ask, name="kbroker-resolve", daemon=True).start()
    return await answer
