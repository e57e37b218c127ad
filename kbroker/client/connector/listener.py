"""What a connector's user may be told of its rebalances."""

from __future__ import annotations

from collections.abc import Mapping


class ConsumerRebalanceListener:
    """Make a subclass, and give it to `ConsumerConnector.set_consumer_rebalance_listener`.

    Called by the thread that rebalances, which waits for it, and the group with it; `commit_offsets` works there,
    nothing else of the connector. What it raises is logged. Kafka calls it whenever a group is rebalanced, this client
    when something changes hands; neither does when the connector is shut down, or its session has expired.
    """

    def before_releasing_partitions(self, partitions: Mapping[str, set[int]]) -> object:
        """These go, by topic: streams give no more of them, others do not have them yet."""

    def before_starting_fetchers(self, consumer_id: str, assignment: Mapping[str, Mapping[int, str]]) -> object:
        """Some came, and nothing of them was read yet. `assignment`: who has what now, in the whole group, by topic and
        partition: consumer id, and behind a dash the number of the stream."""
