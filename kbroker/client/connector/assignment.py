"""Which thread of a group gets which partition. Every member computes the same assignment from the same inputs.

The results are those of Kafka's `range` and `roundrobin` (partition.assignment.strategy), so members of other
implementations agree with them. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kbroker.model import TopicPartition

Threads = Mapping[str, Sequence[str]]
"""Topic -> ids of the threads that read it, of all members, sorted by `java_order`."""
Partitions = Mapping[str, Sequence[int]]
"""Topic -> the numbers of its partitions, sorted."""
Assignment = dict[TopicPartition, str]
"""Partition -> id of the thread that owns it."""


class Disagreement(Exception):
    """Raised when the members' subscriptions do not fit the strategy. The message names the topics and threads."""


def java_order(text: str) -> bytes:
    """A key that sorts as Java's String.compareTo does: by units of UTF-16."""
    return text.encode("utf-16-be", "surrogatepass")


def java_hash(text: str) -> int:
    """Java's String.hashCode."""
    units = java_order(text)
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8) + units[at + 1]) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def assign_range(threads: Threads, partitions: Partitions) -> Assignment:
    """Assign each topic by itself: each thread gets a run of consecutive partitions.

    The runs are as equal as can be; the first ones are longer by one.
    """
    found: Assignment = {}
    for topic, readers in threads.items():
        numbers = partitions.get(topic, ())
        each, longer = divmod(len(numbers), len(readers))
        start = 0
        for place, thread_id in enumerate(readers):
            end = start + each + (place < longer)
            for number in numbers[start:end]:
                found[TopicPartition(topic, number)] = thread_id
            start = end
    return found


def assign_round_robin(threads: Threads, partitions: Partitions) -> Assignment:
    """Deal out the partitions of all topics in turn, sorted by Java's hash of "[topic,partition]", as Kafka does.

    Raises Disagreement unless the same threads read every topic.
    """
    if not threads:
        return {}
    first = next(iter(threads))
    for topic, readers in threads.items():
        if list(readers) != list(threads[first]):
            raise Disagreement(
                f"roundrobin needs that all read the same topics with as many streams: {first} is read by "
                f"{', '.join(threads[first])}, {topic} by {', '.join(readers)}"
            )
    every = [TopicPartition(topic, number) for topic in threads for number in partitions.get(topic, ())]
    every.sort(key=lambda each: (java_hash(f"[{each.topic},{each.partition_id}]"), each))
    readers = threads[first]
    return {partition: readers[place % len(readers)] for place, partition in enumerate(every)}


STRATEGIES: dict[str, Callable[[Threads, Partitions], Assignment]] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
}
