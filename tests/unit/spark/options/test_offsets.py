"""Places in topics as people write them, and as Spark keeps them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.model import TopicPartition
from kbroker.spark.options.offsets import (
    EARLIEST,
    INT64_MAX,
    LATEST,
    Everywhere,
    Offsets,
    PerPartition,
    checkpointed,
    named,
    offsets_of,
    offsets_or_word,
    partitions,
    timestamp,
    timestamps,
)

PLACES = st.builds(TopicPartition, st.text(min_size=1, max_size=5), st.integers(0, (1 << 31) - 1))
OFFSETS = st.dictionaries(PLACES, st.integers(EARLIEST, INT64_MAX), max_size=6)


@given(OFFSETS)
def test_offsets_come_back_as_they_were_kept(offsets: Offsets) -> None:
    text = json.dumps(checkpointed(offsets))
    assert offsets_of(json.loads(text)) == offsets
    assert offsets_or_word(text) == PerPartition(offsets)


@given(OFFSETS)
def test_equal_offsets_are_equal_text(offsets: Offsets) -> None:
    turned = dict(reversed(offsets.items()))
    assert json.dumps(checkpointed(offsets)) == json.dumps(checkpointed(turned))


def test_what_is_kept_is_as_the_jvm_connector_writes_it() -> None:
    text = json.dumps(checkpointed({TopicPartition("b", 0): 5, TopicPartition("a", 10): 2, TopicPartition("a", 9): 1}))
    assert text.replace(" ", "") == '{"a":{"9":1,"10":2},"b":{"0":5}}'


@pytest.mark.parametrize(("text", "at"), [(" Latest ", LATEST), ("EARLIEST", EARLIEST), ("latest", LATEST)])
def test_words_have_any_case(text: str, at: int) -> None:
    assert offsets_or_word(text) == Everywhere(at)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "newest",
        "5",
        "[]",
        "null",
        '{"t": 5}',
        '{"t": [1]}',
        '{"t": {"x": 1}}',
        '{"t": {"-1": 1}}',
        '{"t": {"0": "1"}}',
        '{"t": {"0": 1.5}}',
        '{"t": {"0": true}}',
        '{"t": {"0": null}}',
        '{"t": {"0": -3}}',
        '{"t": {"0": 9223372036854775808}}',
        '{"t": {"2147483648": 1}}',
        '{"t": {"٣": 1}}',
        "{" * 100_000,
    ],
)
def test_wrong_offsets_are_refused_with_what_is_right(text: str) -> None:
    with pytest.raises(ValueError, match="JSON like"):
        offsets_or_word(text)


@given(
    st.text()
    | st.recursive(st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)).map(
        json.dumps
    )
)
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    for read in (offsets_or_word, timestamps, partitions, timestamp):
        try:
            read(text)
        except ValueError:
            pass


@pytest.mark.parametrize("text", ['{"t": {"0": -1}}', '{"t": {"0": -2}}', "earliest", "17"])
def test_times_are_not_offsets(text: str) -> None:
    with pytest.raises(ValueError, match="in ms"):
        timestamps(text)


@pytest.mark.parametrize("text", ["", "yesterday", "-1", "1.5", '{"t": {"0": 1}}'])
def test_one_time_is_a_number(text: str) -> None:
    with pytest.raises(ValueError, match="a time in ms since 1970"):
        timestamp(text)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"t": []}', '{"t": 0}', '{"t": [-1]}', '{"t": ["0"]}', '{"t": [true]}', "t"]
)
def test_wrong_partitions_are_refused_with_what_is_right(text: str) -> None:
    with pytest.raises(ValueError, match="JSON like"):
        partitions(text)


def test_a_partition_that_is_named_twice_is_read_once() -> None:
    assert partitions('{"t": [1, 0, 1]}') == (TopicPartition("t", 1), TopicPartition("t", 0))


def test_messages_name_a_few() -> None:
    assert named([TopicPartition("t", 1), TopicPartition("t", 0)]) == "t-0, t-1"
    assert named(f"t{number}" for number in range(8)) == "t0, t1, t2, t3, t4 and 3 more"
