"""Where a server of a test runs: this machine, or a machine of its own as far as the network goes (`kit/cluster`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class Host:
    """This machine, by one of its loopback addresses."""

    def __init__(self, address: str = "127.0.0.1"):
        self.address = address

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """A block whose sockets, and whose processes' and threads', are of this host's network."""
        yield


LOOPBACK = Host()
