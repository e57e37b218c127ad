"""Machines of a cluster, as far as the network goes: each in a network namespace of its own, with a cable to a bridge.

Between any two of them packets can be dropped, in both directions or in one (nftables), with connections left open as a
broken switch leaves them. Nothing of it is in the network that this process was started in, and no way leads out. The
namespaces have no names: they end with the processes in them and with this process, however it has ended.

Namespaces need root's rights and the programs `ip` and `nft`. Without them `network()` gives a `SharedNetwork`, whose
hosts are addresses 127.0.0.x of this machine: all faults but those of the network are possible there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from tests.kit.brokers.hosts import Host
from tests.kit.kafka import maven

CLONE_NEWNET = 0x40000000
PREFIX = "10.213.77"
"""The network of the hosts; it exists only between the namespaces."""
BITS = 24
CLIENTS = 254
"""The last number of the address of the bridge, where clients are."""
CABLE_TIMEOUT_S = 10.0
PROGRAMS = {"ip": "iproute2", "nft": "nftables"}
"""What is needed, and the Debian package that has it."""
_libc = ctypes.CDLL(None, use_errno=True)


class CannotSeparate(Exception):
    """Raised where this process may not make namespaces, or the programs for them are missing. The message says why."""


class Namespace(Host):
    """A host with a network of its own. Threads enter and leave it; the threads and processes that they start stay."""

    def __init__(self, name: str, address: str):
        """Raises CannotSeparate when this process may not make namespaces."""
        super().__init__(address)
        self.name = name
        made: list[int] = []
        failed: list[OSError] = []

        def make() -> None:
            if _libc.unshare(CLONE_NEWNET):
                failed.append(OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())))
            else:
                made.append(_own_namespace())

        thread = threading.Thread(target=make)  # it ends with its thread, but for the descriptor
        thread.start()
        thread.join()
        if failed:
            raise CannotSeparate(f"no leave to make a network namespace: {failed[0]}")
        self._descriptor = made[0]

    @property
    def path(self) -> str:
        """A name of the namespace, for `ip`."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        before = _own_namespace()
        try:
            _enter(self._descriptor)
            try:
                yield
            finally:
                _enter(before)
        finally:
            os.close(before)

    def run(self, *command: str, told: str | None = None) -> str:
        """Run a program in the namespace, and return what it prints. Raises CalledProcessError when it fails."""
        with self.entered():
            done = subprocess.run(command, input=told, capture_output=True, text=True, check=False, timeout=20)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def close(self) -> None:
        """Give the namespace up. It ends when no process is in it."""
        os.close(self._descriptor)


def _own_namespace() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class SeparateNetwork:
    """The hosts and the bridge between them. A context manager."""

    can_cut = True

    def __init__(self) -> None:
        """Raises CannotSeparate when this process may not make namespaces or a program is missing."""
        for program, package in PROGRAMS.items():
            if shutil.which(program) is None and os.geteuid() == 0:
                install(program, package)
            if shutil.which(program) is None:
                raise CannotSeparate(f"there is no {program}")
        self.hosts: list[Namespace] = []
        self._cuts: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self.clients = self._join("clients", CLIENTS)
        self.clients.run(
            "ip", "-batch", "-",
            told=f"link set lo up\nlink add bridge type bridge\naddr add {self.clients.address}/{BITS} dev bridge\n"
            "link set bridge up\n",
        )  # fmt: skip

    def _join(self, name: str, number: int) -> Namespace:
        host = Namespace(name, f"{PREFIX}.{number}")
        self.hosts.append(host)
        host.run(
            "nft", "-f", "-",
            told="table inet cuts {\n set silent { type ipv4_addr; }\n"
            " chain input { type filter hook input priority 0; ip saddr @silent drop; }\n}\n",
        )  # fmt: skip
        return host

    def add_host(self, name: str) -> Namespace:
        """Return a new host with a cable to the bridge."""
        number = len(self.hosts)
        host = self._join(name, number)
        cable = f"cable{number}"
        self.clients.run(
            "ip", "-batch", "-",
            told=f"link add {cable} type veth peer name eth0 netns {host.path}\n"
            f"link set {cable} master bridge up\n",
        )  # fmt: skip
        host.run(
            "ip", "-batch", "-",
            told=f"link set lo up\naddr add {host.address}/{BITS} dev eth0\nlink set eth0 up\n",
        )  # fmt: skip
        self._await_cable(host)
        return host

    def _await_cable(self, host: Namespace) -> None:
        """Wait until packets pass: the kernel takes its time to believe in a new cable."""
        deadline = time.monotonic() + CABLE_TIMEOUT_S
        while True:
            with host.entered(), contextlib.suppress(TimeoutError, OSError):
                try:
                    socket.create_connection((self.clients.address, 1), timeout=0.2).close()
                except ConnectionRefusedError:  # nobody listens there: the host itself has answered
                    return
            if time.monotonic() > deadline:
                raise CannotSeparate(f"no packet passes between {host.name} and the bridge")
            time.sleep(0.01)

    def cut(self, source: Host, target: Host, *, both_ways: bool = True) -> None:
        """Drop every packet from `source` to `target`, and the other way too. Cutting twice is cutting once."""
        with self._lock:
            self._drop(source, target)
            if both_ways:
                self._drop(target, source)

    def _drop(self, source: Host, target: Host) -> None:
        assert isinstance(target, Namespace)
        if (source.address, target.address) not in self._cuts:
            self._cuts.add((source.address, target.address))
            target.run("nft", "add", "element", "inet", "cuts", "silent", f"{{ {source.address} }}")

    def isolate(self, host: Host, *, clients_too: bool = True) -> None:
        """Cut a host from all others, as if its cable were out."""
        for other in self.hosts:
            if other is not host and (clients_too or other is not self.clients):
                self.cut(host, other)

    def mend(self) -> None:
        """Let all packets pass again."""
        with self._lock:
            self._cuts.clear()
            for host in self.hosts:
                host.run("nft", "flush", "set", "inet", "cuts", "silent")

    def entered(self) -> contextlib.AbstractContextManager[None]:
        """A block in which this thread, and what it starts, is on the clients' host."""
        return self.clients.entered()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self.hosts:
            host.close()


class SharedNetwork:
    """Hosts that are loopback addresses of this machine: nothing can be cut between them. A context manager."""

    can_cut = False

    def __init__(self) -> None:
        self.clients = Host()
        self.hosts: list[Host] = [self.clients]

    def add_host(self, name: str) -> Host:
        host = Host(f"127.0.0.{1 + len(self.hosts)}")
        self.hosts.append(host)
        return host

    def cut(self, source: Host, target: Host, *, both_ways: bool = True) -> None:
        raise CannotSeparate("nothing can be cut between the addresses of one machine")

    def isolate(self, host: Host, *, clients_too: bool = True) -> None:
        raise CannotSeparate("nothing can be cut between the addresses of one machine")

    def mend(self) -> None:
        """Nothing is ever cut."""

    def entered(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


Network = SeparateNetwork | SharedNetwork


def network() -> Network:
    """Return hosts that can be cut from each other where this process may make them, else a SharedNetwork."""
    try:
        return SeparateNetwork()
    except CannotSeparate:
        return SharedNetwork()


def install(program: str, package: str, run: Callable[..., object] = subprocess.run) -> None:
    """Install a Debian package for a program that is missing; where there are no such packages, nothing is done."""
    if shutil.which("apt-get") is None:
        return
    with maven.making(maven.cache_directory() / "compat" / package):
        if shutil.which(program) is None:
            run(["apt-get", "update", "-qq"], check=False)
            run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", package], check=False)
