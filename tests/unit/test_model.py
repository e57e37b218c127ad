"""Keys of tables for what others choose."""

from __future__ import annotations

import pytest

from kbroker.model import TopicPartition, number_key, number_of, partition_key
from tests.kit.wire.collisions import takes_as_long


@pytest.mark.parametrize("number", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_a_key_of_a_number_tells_the_number(number: int) -> None:
    assert number_of(number_key(number)) == number


def test_numbers_that_meet_in_a_table_do_not_meet_as_keys() -> None:
    assert not takes_as_long(dict.fromkeys), "the numbers themselves do"
    assert takes_as_long(lambda numbers: dict.fromkeys(map(number_key, numbers)))


def test_partitions_do_not_meet_where_the_topic_has_a_name() -> None:
    assert takes_as_long(lambda numbers: dict.fromkeys(TopicPartition("t", number) for number in numbers))


def test_the_hash_of_a_partition_without_a_name_has_no_secret_but_its_key_has() -> None:
    assert hash(TopicPartition("", 1)) == hash((0, 1))
    assert takes_as_long(lambda numbers: dict.fromkeys(partition_key("", number) for number in numbers))
