"""Tasks that wait for each other."""

from __future__ import annotations

from tests.simulation.scheduler import MS, Process, Scheduler, Task, TaskLock


def test_who_finds_a_lock_held_gets_it_when_it_is_free() -> None:
    scheduler, process, seen = Scheduler(1), Process("p"), list[str]()
    lock = TaskLock(scheduler, process)

    def hold(name: str) -> None:
        with lock:
            seen.append(f"{name} has it")
            tasks[name].wait()
        seen.append(f"{name} is over")

    tasks = {name: Task(process, lambda name=name: hold(name), name) for name in "abc"}  # type: ignore[misc]
    for task in tasks.values():
        task.start()
    assert seen == ["a has it"]
    for name in "abc":
        scheduler.after(MS, lambda name=name: tasks[name].answer(None), process)  # type: ignore[misc]
        while scheduler.step(scheduler.now + MS):
            pass
    assert seen == ["a has it", "a is over", "b has it", "b is over", "c has it", "c is over"]


def test_a_task_that_is_killed_gives_its_lock_back() -> None:
    scheduler, process = Scheduler(1), Process("p")
    lock = TaskLock(scheduler, process)

    def hold() -> None:
        with lock:
            task.wait()

    task = Task(process, hold, "killed")
    task.start()
    task.kill()
    with lock:
        pass
