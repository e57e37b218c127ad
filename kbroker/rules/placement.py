"""Which brokers get the replicas of new partitions. Pure: where to begin is an argument."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence


def place_replicas(
    racks: Mapping[int, str | None],
    partition_count: int,
    replication_factor: int,
    *,
    first_index: int,
    shift: int,
    first_partition_id: int = 0,
) -> list[tuple[int, ...]]:
    """Replicas of each new partition, its preferred leader first.

    `racks` are the brokers and their racks; replicas are spread over racks if all brokers have one. Leaders go round
    the brokers from `first_index` on; the distance of the followers grows with each round, beginning at `shift`, so
    that a broker's followers are not all on its neighbour. Both numbers are for the caller to draw.
    """
    assert 0 < replication_factor <= len(racks), (replication_factor, len(racks))
    names = {broker_id: rack for broker_id, rack in racks.items() if rack is not None}
    ring = _by_turns(names) if len(names) == len(racks) else sorted(racks)
    rack_of: Mapping[int, str | int] = names if len(names) == len(racks) else {each: each for each in racks}
    placed = []
    for partition_id in range(first_partition_id, first_partition_id + partition_count):
        leader_index = (first_index + partition_id) % len(ring)
        candidates = list(_followers(ring, leader_index, shift + partition_id // len(ring)))
        replicas = [ring[leader_index]]
        used = {rack_of[replicas[0]]}
        # A new rack for each replica while there is one; then whoever comes next.
        for fresh_only in (True, False):
            for candidate in candidates:
                if len(replicas) == replication_factor:
                    break
                if candidate not in replicas and not (fresh_only and rack_of[candidate] in used):
                    replicas.append(candidate)
                    used.add(rack_of[candidate])
        placed.append(tuple(replicas))
    return placed


def _followers(ring: Sequence[int], leader_index: int, rounds: int) -> Iterator[int]:
    """Every other broker once, beginning 1 to n-1 places behind the leader."""
    others = len(ring) - 1
    for each in range(others):
        yield ring[(leader_index + 1 + (rounds + each) % others) % len(ring)]


def _by_turns(racks: Mapping[int, str]) -> list[int]:
    """Brokers in an order in which neighbours are in different racks as far as that goes."""
    members: dict[str, list[int]] = {}
    for broker_id in sorted(racks):
        members.setdefault(racks[broker_id], []).append(broker_id)
    turns = [members[rack] for rack in sorted(members)]
    longest = max(map(len, turns))
    return [rack[turn] for turn in range(longest) for rack in turns if turn < len(rack)]
