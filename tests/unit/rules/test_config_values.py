"""What settings' text may say, against answers of Apache Kafka 3.9.1."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.errors import ConfigError
from kbroker.rules.config_values import INTEGER_RANGE, Kind, Limits, Value, format_value, parse_value


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Kind.LONG, " 12 ", 12),
        (Kind.LONG, "+5", 5),
        (Kind.LONG, "-9223372036854775808", -(2**63)),
        (Kind.INT, "0000000000000000000000007", 7),
        (Kind.BOOLEAN, " TRUE", True),
        (Kind.DOUBLE, "1e-1", 0.1),
        (Kind.DOUBLE, "5", 5.0),
        (Kind.DOUBLE, ".5f", 0.5),
        (Kind.LIST, "", ()),
        (Kind.LIST, "a , b", ("a", "b")),
        (Kind.LIST, "compact,", ("compact", "")),
        (Kind.STRING, " x ", "x"),
    ],
)
def test_text_is_read_as_kafka_reads_it(kind: Kind, text: str, value: Value) -> None:
    assert parse_value("a.name", kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (Kind.LONG, "x", "Not a number of type LONG"),
        (Kind.LONG, "", "Not a number of type LONG"),
        (Kind.LONG, "1_000", "Not a number of type LONG"),
        (Kind.LONG, "1e3", "Not a number of type LONG"),
        (Kind.LONG, "٣", "Not a number of type LONG"),
        (Kind.INT, "2147483648", "Not a number of type INT"),
        (Kind.SHORT, "40000", "Not a number of type SHORT"),
        (Kind.LONG, "9" * 100_000, "Not a number of type LONG"),
        (Kind.DOUBLE, "abc", "Not a number of type DOUBLE"),
        (Kind.BOOLEAN, "maybe", "Expected value to be either true or false"),
    ],
)
def test_what_is_no_value_is_refused_in_kafkas_words(kind: Kind, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_value("a.name", kind, text)
    assert str(raised.value) == f"Invalid value {text} for configuration a.name: {problem}"


@pytest.mark.parametrize(
    ("limits", "value", "message"),
    [
        (Limits(at_least=14), 3, "Invalid value 3 for configuration n: Value must be at least 14"),
        (Limits(0, 1), 2.0, "Invalid value 2.0 for configuration n: Value must be no more than 1"),
        (
            Limits(1, 9, also=(-1,)),
            0,
            "Invalid value 0 for configuration n: Value must be between 1 and 9 or equal to -1",
        ),
        (Limits(choices=("a", "b")), ("a", "c"), "Invalid value c for configuration n: String must be one of: a, b"),
    ],
)
def test_values_outside_the_limits_are_refused_in_kafkas_words(limits: Limits, value: Value, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        limits.check("n", value)
    assert str(raised.value) == message


@pytest.mark.parametrize("value", [-1, 1, 9])
def test_lone_values_beside_a_range_are_taken(value: int) -> None:
    Limits(1, 9, also=(-1,)).check("n", value)


@given(st.sampled_from(sorted(INTEGER_RANGE)), st.data())
def test_integers_survive_formatting(kind: Kind, data: st.DataObject) -> None:
    value = data.draw(st.integers(*INTEGER_RANGE[kind]))
    assert parse_value("n", kind, format_value(value)) == value


@given(st.floats(allow_nan=False))
def test_doubles_survive_formatting(value: float) -> None:
    assert parse_value("n", Kind.DOUBLE, format_value(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (1.0, "1.0"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (1e7, "1.0E7"),
        (0.0001, "1.0E-4"),
        (9999999.0, "9999999.0"),
        (-0.00025, "-2.5E-4"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_doubles_are_printed_as_java_prints_them(value: float, text: str) -> None:
    assert format_value(value) == text
