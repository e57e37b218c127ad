"""What a Python worker of Spark keeps from task to task: consumers, producers, and memory.

A worker runs its tasks one after the other, so no lock is needed. Read `kept_clients.py` first. What a task does with
a client is in `reading/`, `writing/` and `loader/tasks/`.
"""
