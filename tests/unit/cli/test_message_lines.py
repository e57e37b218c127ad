import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.cli.message_lines import decode_line, encode_line
from kbroker.errors import KbrokerError

DATA = st.none() | st.binary() | st.text().map(str.encode)


@given(DATA, DATA, st.lists(st.tuples(st.text(), DATA)), st.integers(0, 2**60), st.integers(0, 1000))
def test_what_consume_prints_is_what_produce_reads(key, value, headers, timestamp, partition) -> None:
    line = encode_line(key, value, tuple(headers), partition=partition, offset=5, timestamp=timestamp)
    assert "\n" not in line
    assert decode_line(line.encode(), 1) == (key, value, headers, timestamp, partition)


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        (b'{"value": "x"}', None, b"x"),
        (b'{"key": 7, "value": {"a": [1, "\\u00e9"]}}', b"7", '{"a": [1, "é"]}'.encode()),
        (b'{"value": null, "headers": {"a": "b"}}', None, None),
        (b"{}", None, None),
    ],
)
def test_json_is_read_as_people_write_it(line: bytes, key: bytes | None, value: bytes | None) -> None:
    message = decode_line(line, 1)
    assert (message.key, message.value, message.timestamp, message.partition_id) == (key, value, -1, -1)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"x",
        b"[]",
        b"7",
        b'{"value_base64": "?"}',
        b'{"headers": 7}',
        b'{"headers": [1]}',
        b'{"timestamp": "x"}',
        b"\xff",
        b'{"headers": [["a", {"b": "c"}]]}',
        b'{"timestamp": Infinity}',
        b'{"vaule": "x"}',
    ],
)
def test_a_line_that_is_no_message_is_named_by_its_number(line: bytes) -> None:
    with pytest.raises(KbrokerError, match="line 42 of the input is not a message in JSON"):
        decode_line(line, 42)


def test_an_unknown_field_is_refused_by_its_name() -> None:
    with pytest.raises(KbrokerError, match=r"'vaule' is none of its fields; did you mean value\?"):
        decode_line(b'{"vaule": "x"}', 1)


def test_what_consume_prints_beside_the_message_is_passed_over() -> None:
    assert decode_line(b'{"topic": "t", "offset": 7, "value": "x"}', 1).value == b"x"


def test_text_stays_readable() -> None:
    line = json.loads(encode_line("schlüssel".encode(), b"\xff", (), partition=0))
    assert line == {"partition": 0, "key": "schlüssel", "value_base64": "/w==", "headers": []}
