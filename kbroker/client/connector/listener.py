"""The interface by which a connector tells its user about rebalances."""

from __future__ import annotations

from collections.abc import Mapping


class ConsumerRebalanceListener:
    """Hears of rebalances: make a subclass, and give it to `ConsumerConnector.set_consumer_rebalance_listener`.

    The thread that rebalances calls the methods and waits for them, and so does the whole group. Of the connector's
    methods only `commit_offsets` works there. Exceptions are logged.

    Kafka calls its listener at every rebalance; this client calls it only when partitions change hands. Neither calls
    it when the connector is shut down, or when its ZooKeeper session has expired.
    """

    def before_releasing_partitions(self, partitions: Mapping[str, set[int]]) -> object:
        """Called before this member releases partitions, given as partition numbers by topic.

        Its streams hand out no more records of them, and no other member has them yet.
        """

    def before_starting_fetchers(self, consumer_id: str, assignment: Mapping[str, Mapping[int, str]]) -> object:
        """Called when this member has got new partitions and has read nothing of them yet.

        `assignment`: the owner of each partition of the whole group, by topic and partition number. An owner is a
        consumer id, a dash, and the number of the stream.
        """
