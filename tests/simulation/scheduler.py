"""Virtual time: events in the order of their time, processes that pause and die, and tasks that wait in the middle.

Time is in microseconds, as an int: floats would add up differently in another order. Nothing here reads a real clock.
A task is code that waits for an answer (a call of the tree) where real code would block its thread. It has a thread of
its own, of which only one runs at any moment: the one that the scheduler has handed the turn to.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

MS = 1000
SECOND = 1_000_000

Action = Callable[[], None]


class Killed(BaseException):
    """Raised in a task whose process was killed, at the place where it waits. Nobody may catch it."""


class Process:
    """A process of one machine, from its start to its end. What a dead process should have done is dropped."""

    __slots__ = ("backlog", "is_alive", "is_paused", "name", "tasks")

    def __init__(self, name: str):
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.backlog: deque[Action] = deque()
        """What has come to pass while the process was paused, in order."""
        self.tasks: list[Task] = []

    def end(self) -> None:
        """Kill the process: its tasks end where they wait."""
        self.is_alive = False
        self.backlog.clear()
        for task in list(self.tasks):
            task.kill()


class Event:
    """An action at a time. `cancel` makes it nothing."""

    __slots__ = ("action", "process")

    def __init__(self, action: Action | None, process: Process | None):
        self.action = action
        self.process = process

    def cancel(self) -> None:
        self.action = None


class Scheduler:
    """The clock and the queue of a simulation. `chance` decides what the seed decides; nothing else may be random."""

    def __init__(self, seed: int | str):
        self.now = 0
        self.chance = random.Random(seed)
        self.steps = 0
        self._queue: list[tuple[int, int, Event]] = []
        self._count = 0

    def after(self, delay: float, action: Action, process: Process | None = None) -> Event:
        """Let `action` happen in `delay` microseconds, if `process` is alive then, and after its pause if it pauses."""
        event = Event(action, process)
        self._count += 1
        heapq.heappush(self._queue, (self.now + int(delay), self._count, event))
        return event

    def step(self, until: int) -> bool:
        """Let the next event happen. False if there is none before `until`; then it is `until`."""
        while self._queue and self._queue[0][0] <= until:
            when, _, event = heapq.heappop(self._queue)
            action, process = event.action, event.process
            if action is None or (process is not None and not process.is_alive):
                continue
            self.now = when
            if process is not None and process.is_paused:
                process.backlog.append(action)
                continue
            self.steps += 1
            action()
            return True
        self.now = until
        return False

    def pause(self, process: Process) -> None:
        """Stop the process, as SIGSTOP does."""
        process.is_paused = True

    def resume(self, process: Process) -> None:
        """Let a paused process go on: first what has waited for it, in order."""
        process.is_paused = False
        waiting, process.backlog = process.backlog, deque()
        for action in waiting:
            self.after(0, action, process)


class Task:
    """A virtual thread of a process. `body` runs in it; in there `wait` waits until somebody calls `answer`."""

    def __init__(self, process: Process, body: Callable[[], None], name: str):
        self.name = name
        self.process = process
        self.is_over = False
        self.is_waiting = False
        self._body = body
        self._value: Any = None
        self._error: BaseException | None = None
        self._is_killed = False
        self._turn = threading.Lock()
        self._turn.acquire()
        self._back = threading.Lock()
        self._back.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        process.tasks.append(self)

    def start(self) -> None:
        """Run the body until it waits for the first time."""
        self._thread.start()
        self._hand_over()

    def wait(self) -> Any:
        """Wait for `answer`. Called in the task itself. Returns the answer, or raises it if it is an exception."""
        self.is_waiting = True
        self._back.release()
        self._turn.acquire()
        self.is_waiting = False
        if self._is_killed:
            raise Killed
        value, self._value = self._value, None
        if isinstance(value, BaseException):
            raise value
        return value

    def answer(self, value: Any) -> None:
        """Give a waiting task what it waits for, and run it until it waits again. Raises what its body raises."""
        assert self.is_waiting, self.name
        self._value = value
        self._turn.release()
        self._hand_over()

    def kill(self) -> None:
        if self.is_waiting:
            self._is_killed = True
            self._turn.release()
            self._hand_over()

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def _hand_over(self) -> None:
        self._back.acquire()
        if self.is_over:
            self._thread.join()
            if self in self.process.tasks:
                self.process.tasks.remove(self)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        try:
            self._body()
        except Killed:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.is_over = True
            self._back.release()


class TaskLock:
    """A lock of a process, for tasks that wait for answers while they hold it: others wait for it in virtual time."""

    def __init__(self, scheduler: Scheduler, process: Process):
        self._scheduler = scheduler
        self._process = process
        self._is_held = False
        self._waiting: deque[Task] = deque()

    def __enter__(self) -> None:
        while self._is_held:
            task = next(each for each in self._process.tasks if each.is_current)
            self._waiting.append(task)
            task.wait()
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False
        if self._waiting:
            task = self._waiting.popleft()
            self._scheduler.after(0, lambda: task.answer(None), self._process)
