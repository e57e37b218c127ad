"""How a client for threads (`Blocking`) and one for asyncio (`Awaiting`) share their operations.

An operation is a coroutine function that runs on the client's thread. With `Blocking` the caller blocks until it is
done; with `Awaiting` the caller awaits it, in any event loop. It is written once, in a class that both inherit from:

    class AdminOperations:
        @operation
        async def list_topics(self) -> list[str]: ...

    class AdminClient(AdminOperations, Blocking): ...            admin.list_topics()
    class AsyncAdminClient(AdminOperations, Awaiting): ...       await admin.list_topics()
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from types import MethodType, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from kbroker.client.network.thread import ThreadOwner

P = ParamSpec("P")
T = TypeVar("T")


class Blocking(ThreadOwner):
    """Base of the clients for threads: operations block until they are done; Ctrl-C interrupts. A context manager."""

    def close(self, timeout: float = 10.0) -> None:
        """Close the connections and end the thread, within `timeout` seconds.

        Calls that wait in other threads raise ClientClosed.
        """
        self._thread.stop(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Awaiting(ThreadOwner):
    """Base of the clients for asyncio: operations are awaited. Any number of event loops may use one client.

    An asynchronous context manager.
    """

    async def close(self) -> None:
        """Close the connections and end the thread. In tasks that wait for a call ClientClosed is raised."""
        await self._thread.stopped()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class operation(Generic[P, T]):
    """Decorator of a coroutine function: it becomes a blocking method of Blocking, and a coroutine of Awaiting."""

    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]):
        @wraps(function)
        def blocking(client: Any, *arguments: P.args, **keywords: P.kwargs) -> T:
            thread = client._thread
            coroutine = function(client, *arguments, **keywords)
            return thread.call(coroutine, what=function.__name__)  # type: ignore[no-any-return]

        @wraps(function)
        async def awaiting(client: Any, *arguments: P.args, **keywords: P.kwargs) -> T:
            thread = client._thread
            return await thread.awaited(function(client, *arguments, **keywords))  # type: ignore[no-any-return]

        self._blocking = blocking
        self._awaiting = awaiting
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, client: Blocking, kind: type) -> Callable[P, T]: ...

    @overload
    def __get__(self, client: Awaiting, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, client: None, kind: type) -> Callable[..., Any]: ...

    def __get__(self, client: Any, kind: type) -> Any:
        face = self._awaiting if issubclass(kind, Awaiting) else self._blocking
        return face if client is None else MethodType(face, client)
