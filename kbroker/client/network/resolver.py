"""Resolves host names without holding up the client's thread."""

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
    """Return (family, address) for each address of a host name, without duplicates.

    Raises OSError when the name has no address.
    """
    with contextlib.suppress(ValueError):
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        return [(family, (host, port))]
    found = await _in_new_thread(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys((family, target) for family, _, _, _, target in found))


async def canonical(servers: Iterable[tuple[str, int]], timeout_s: float) -> tuple[tuple[str, int], ...]:
    """Return the servers with the canonical names of their addresses, as Kerberos and certificates may need them.

    An address without a name stays an address. A server that cannot be resolved stays as it was given: connecting to it
    says why.
    """
    found: dict[tuple[str, int], None] = {}
    for host, port in servers:
        try:
            async with asyncio.timeout(timeout_s):
                for _, target in await addresses_of(host, port):
                    found[await _in_new_thread(partial(_name_of, target[0])), port] = None
        except OSError as error:
            log.debug("%s is not resolved: %s", host, error)
            found[host, port] = None
    return tuple(found)


def _name_of(address: str) -> str:
    """Return the name of an address if the name resolves to the same address; else the address itself."""
    try:
        name = socket.gethostbyaddr(address)[0]
        if any(target[0] == address for *_, target in socket.getaddrinfo(name, None)):
            return name
    except (OSError, UnicodeError):
        pass
    return address


async def _in_new_thread(function: Callable[[], T]) -> T:
    """Call `function` in a new thread, and return its result.

    A resolver may take minutes and cannot be interrupted. So at the client's end nothing waits for the thread.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def deliver(result: Any, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    def resolve() -> None:
        result, failed = None, None
        try:
            result = function()
        except (OSError, ValueError) as error:  # ValueError: the text cannot be a host name
            failed = error if isinstance(error, OSError) else OSError(0, str(error))
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, result, failed)

    threading.Thread(target=resolve, name="kbroker-resolve", daemon=True).start()
    return await answer
