"""Places the replicas of new partitions on brokers. A pure function: the random start is an argument."""

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
    """The broker ids of each new partition's replicas, the preferred leader first.

    `racks` has the rack of each broker id; replicas are spread over racks if all brokers have one. The leaders of
    successive partitions are successive brokers, from `first_index` on. The distance from leader to followers begins at
    `shift` and grows with each round, so that the followers of a broker's partitions are not all on its neighbour. The
    caller draws both numbers at random.
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
        # Each replica gets a new rack while there is one, then the next broker of any rack.
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
    """Every broker but the leader, once; the first one is 1 to n-1 places behind the leader, depending on `rounds`."""
    others = len(ring) - 1
    for each in range(others):
        yield ring[(leader_index + 1 + (rounds + each) % others) % len(ring)]


def _by_turns(racks: Mapping[int, str]) -> list[int]:
    """The brokers, ordered so that neighbours are in different racks as far as possible."""
    members: dict[str, list[int]] = {}
    for broker_id in sorted(racks):
        members.setdefault(racks[broker_id], []).append(broker_id)
    turns = [members[rack] for rack in sorted(members)]
    longest = max(map(len, turns))
    return [rack[turn] for turn in range(longest) for rack in turns if turn < len(rack)]
