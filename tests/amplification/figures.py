"""Measuring what requests cost a broker process: from outside, in bytes and in CPU time.

Time is how long threads have run (`/proc/PID/task/*/schedstat`), never what a clock says: other load of the machine is
not counted. Memory is the highest resident size since it was last reset (`/proc/PID/clear_refs`).
"""

from __future__ import annotations

import contextlib
import fcntl
import resource
import select
import socket
import termios
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.headers import encode_request

MIB = 1 << 20
ADDRESS_SPACE = 4 << 30
"""Upper bound of the broker's address space: a successful attack ends there, not with the machine's memory."""
LOOK_S = 0.004
IDLE_LOOKS = 5
IDLE_NS = 300_000
"""If threads run no longer than this between two looks, the broker is idle. The probe's requests are included."""
PROBE_EVERY_S = 0.003
PATIENCE_S = 60.0
PROBE = encode_request(ApiKey.API_VERSIONS, 0, 1, "probe", M.ApiVersionsRequest())
ANSWERED, CLOSED, WAITS, STOPPED, ENDED = (
    "answered", "the connection was closed", "it waits", "no more was looked at", "the broker ended",
)  # fmt: skip


@dataclass
class Figures:
    """What requests have cost, in bytes and nanoseconds."""

    request: int = 0
    answer: int = 0
    memory: int = 0
    """Growth of the resident size at its highest, without the size of the answer, which the broker has to hold once."""
    time: int = 0
    """CPU time of all threads of the broker."""
    stands: int = 0
    """The most CPU time of all threads between a request on another connection and its answer."""
    written: int = 0
    """Bytes written to files."""
    stays: int = 0
    """Growth of the resident size that is left once the connection is closed."""
    outcome: str = ANSWERED

    def __str__(self) -> str:
        return (
            f"{self.request:,} bytes of request: {self.answer:,} of answer, {self.memory / MIB:.1f} MiB of memory "
            f"({self.stays / MIB:.1f} stay), {self.time / 1e6:.1f} ms of time (others stand for "
            f"{self.stands / 1e6:.1f}), {self.written:,} bytes written; {self.outcome}"
        )


NO_LIMIT = Figures(answer=1 << 60, memory=1 << 60, time=1 << 60)


class Scales:
    """Measures what requests to a broker process cost. It does one measurement at a time."""

    def __init__(self, pid: int, port: int):
        self.folder = Path(f"/proc/{pid}")
        self.port = port
        self.probe = Probe(self)
        resource.prlimit(pid, resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))

    def close(self) -> None:
        self.probe.socket.close()

    # --- what the system says of the process
    def time_ns(self) -> int:
        """The time that all threads have run, in ns; 0 if the broker has ended."""
        found = 0
        with contextlib.suppress(OSError):
            for task in (self.folder / "task").iterdir():
                with contextlib.suppress(OSError):
                    found += int((task / "schedstat").read_bytes().split()[0])
        return found

    def is_busy(self) -> bool:
        """Whether a thread runs, waits for a core, or waits for a disk."""
        with contextlib.suppress(OSError):
            for task in (self.folder / "task").iterdir():
                with contextlib.suppress(OSError):
                    if (task / "stat").read_bytes().rpartition(b") ")[2][:1] in b"RD":
                        return True
        return False

    def has_ended(self) -> bool:
        try:
            return b") Z " in (self.folder / "stat").read_bytes()
        except OSError:
            return True

    def status(self, name: str) -> int:
        """A size of /proc/PID/status in bytes, by its name; 0 if the broker has ended."""
        with contextlib.suppress(OSError):
            for line in (self.folder / "status").read_text().splitlines():
                if line.startswith(name + ":"):
                    return int(line.split()[1]) * 1024
        return 0

    def written(self) -> int:
        text = (self.folder / "io").read_text()
        return int(text.partition("wchar:")[2].split()[0])

    def beyond(self, figures: Figures, resident: int) -> int:
        """The highest resident size, less the size `resident` before and the size of the answer."""
        return max(self.status("VmHWM") - resident - figures.answer, 0)

    # --- weighing
    def weigh(self, frames: Sequence[bytes], limit: Figures) -> Figures:
        """Measure: send `frames` on a new connection and read the answers, while no figure is over that of `limit`."""
        figures = Figures(request=sum(map(len, frames)))
        return self.weigh_while(lambda: self.exchange(frames, figures, limit), figures, limit)

    def exchange(self, frames: Sequence[bytes], figures: Figures | None = None, limit: Figures | None = None) -> None:
        """Send `frames` on a new connection and read the answers, without measuring."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_S) as connection:
            sender = threading.Thread(target=send, args=(connection, frames), daemon=True)
            sender.start()
            resident = self.status("VmRSS")
            self._receive(connection, sender, len(frames), figures or Figures(), limit or NO_LIMIT, resident)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            sender.join(PATIENCE_S)

    def weigh_while(self, act: Callable[[], None], figures: Figures, limit: Figures) -> Figures:
        """Return `figures` with what the broker spends while `act` runs and until it is idle again."""
        (self.folder / "clear_refs").write_text("5")
        resident, time, written = self.status("VmRSS"), self.time_ns(), self.written()
        self.probe.start()
        try:
            act()
        finally:
            self.probe.stop(breaks_off=figures.outcome == STOPPED)
        figures.stands = self.probe.longest_ns
        if figures.outcome == STOPPED:
            return figures
        self.settle(limit.time)
        if self.has_ended():
            figures.outcome = ENDED
            return figures
        figures.time = self.time_ns() - time
        figures.memory = self.beyond(figures, resident)
        figures.stays = max(self.status("VmRSS") - resident, 0)
        figures.written = max(self.written() - written - figures.answer - self.probe.answered, 0)
        return figures

    def _receive(
        self,
        connection: socket.socket,
        sender: threading.Thread,
        count: int,
        figures: Figures,
        limit: Figures,
        resident: int,
    ) -> None:
        """Receive until `count` answers are there, the broker is idle, or one of the figures is over its limit."""
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        before = last = self.time_ns()
        answers, idle = Answers(), 0
        while answers.count < count:
            if poll.poll(LOOK_S * 1000):
                try:
                    data = connection.recv(MIB)
                except OSError:
                    data = b""
                if not data:
                    figures.outcome = CLOSED
                    return
                answers.feed(data)
                idle = 0
                figures.answer = answers.announced
            else:
                now = self.time_ns()
                is_sending = sender.is_alive() or is_under_way(connection)
                idle = 0 if is_sending or self.is_busy() or now - last > IDLE_NS else idle + 1
                last, figures.time, figures.memory = now, now - before, self.beyond(figures, resident)
                if idle == IDLE_LOOKS:
                    figures.outcome = WAITS
                    return
            if figures.answer > limit.answer or figures.time > limit.time or figures.memory > ADDRESS_SPACE // 2:
                figures.outcome = STOPPED
                return
        figures.memory = figures.time = 0

    def settle(self, limit_ns: int) -> None:
        """Wait until the broker is idle, or has run for `limit_ns` meanwhile."""
        first = last = self.time_ns()
        idle = 0
        pause = threading.Event()
        while idle < 2 and last - first < limit_ns:
            pause.wait(LOOK_S)
            now = self.time_ns()
            idle = 0 if self.is_busy() or now - last > IDLE_NS else idle + 1
            last = now


def send(connection: socket.socket, frames: Sequence[bytes]) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(b"".join(frames))


def is_under_way(connection: socket.socket) -> bool:
    """Whether bytes that were sent have not reached the system of the other side."""
    return any(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))


class Answers:
    """Counts answers without keeping them."""

    def __init__(self) -> None:
        self.count = self.announced = 0
        self._head = b""
        self._left = 0

    def feed(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if not self._left:
                wanted = 4 - len(self._head)
                self._head += data[at : at + wanted]
                at += wanted
                if len(self._head) < 4:
                    return
                self._left = int.from_bytes(self._head)
                self.announced += 4 + self._left
                self._head = b""
            taken = min(self._left, len(data) - at)
            self._left -= taken
            at += taken
            self.count += not self._left


class Probe:
    """Another connection, which sends requests all the time between `start` and `stop`. It stays open."""

    def __init__(self, scales: Scales):
        self.scales = scales
        self.socket = socket.create_connection(("127.0.0.1", scales.port), PATIENCE_S)
        self.size = 0
        self.longest_ns = self.answered = 0
        self.stopping = threading.Event()
        self.thread: threading.Thread | None = None
        self._ask()

    def _ask(self) -> None:
        self.socket.sendall(PROBE)
        size = int.from_bytes(self._read(4))
        self._read(size)
        self.size = size + 4

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker has ended")
            data += part
        return data

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while not self.stopping.wait(PROBE_EVERY_S):
                before = self.scales.time_ns()
                try:
                    self._ask()
                finally:
                    self.longest_ns = max(self.longest_ns, self.scales.time_ns() - before)
                self.answered += self.size

    def start(self) -> None:
        self.longest_ns = self.answered = 0
        self.stopping.clear()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self, breaks_off: bool) -> None:
        """Stop, and wait for the last answer. With `breaks_off`, close the connection instead, for ever."""
        self.stopping.set()
        if breaks_off:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
        assert self.thread is not None
        self.thread.join(PATIENCE_S)
