"""Running functions at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_all(*bodies: Callable[[], None]) -> None:
    """Run each function in its own thread. Raise the first error of any of them when all have ended."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
