import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.config.properties import parse_properties, read_properties
from kbroker.errors import ConfigError


def values(text: str) -> dict[str, str]:
    return {name: value for name, value, _ in parse_properties(text, "test")}


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("a=b", "a", "b"),
        ("a = b", "a", "b"),
        ("a:b", "a", "b"),
        ("a b", "a", "b"),
        ("a\tb", "a", "b"),
        ("  a  :  b=c", "a", "b=c"),
        ("a", "a", ""),
        ("a=", "a", ""),
        (r"a\=b=c", "a=b", "c"),
        (r"a\ b=c", "a b", "c"),
        (r"a=\ttab\nline", "a", "\ttab\nline"),
        (r"a=C:\\temp", "a", r"C:\temp"),
        (r"a=\q", "a", "q"),
        (r"a=\u00e9", "a", "é"),
        (r"a=\uD83D\uDE00", "a", "😀"),
        ("a=one\\\n   two", "a", "onetwo"),
        ("a=one\\\\\nb=two", "a", "one\\"),
        ("a=one\\\n#two", "a", "one#two"),
        ("a=one\\", "a", "one"),
        ("a=listeners://[::1]:9092", "a", "listeners://[::1]:9092"),
    ],
)
def test_a_line_is_read_as_java_reads_it(text: str, name: str, value: str) -> None:
    assert parse_properties(text, "test")[0][:2] == (name, value)


def test_comments_and_blank_lines_are_skipped_and_lines_are_counted() -> None:
    found = parse_properties("# one\n\n! two\r\n a=1\rb=\\\n2\n\nc=3", "test")
    assert found == [("a", "1", 4), ("b", "2", 5), ("c", "3", 8)]


def test_a_bad_unicode_escape_names_its_line() -> None:
    with pytest.raises(ConfigError, match=r"server.properties:2: \\u12 is not"):
        parse_properties("a=b\nc=\\u12", "server.properties")


def test_a_file_that_is_not_utf8_is_read_as_latin1(tmp_path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"a=caf\xe9\n")
    assert read_properties(path) == [("a", "café", 1)]
    path.write_bytes("\ufeffa=café\n".encode())
    assert read_properties(path) == [("a", "café", 1)]


def test_a_missing_file_is_one_clear_error(tmp_path) -> None:
    with pytest.raises(ConfigError, match="nowhere: cannot read it: no such file or directory"):
        read_properties(tmp_path / "nowhere")


def escaped(text: str) -> str:
    """Every character as Java's own `store` may write it."""
    units = text.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.text(st.characters(exclude_categories=["Cs"]))
    )
)
def test_what_is_written_with_escapes_is_read_back(pairs: dict[str, str]) -> None:
    text = "\n".join(f"{escaped(name)}={escaped(value)}" for name, value in pairs.items())
    assert values(text) == pairs


@given(st.text())
def test_any_text_is_read_or_refused_with_our_error(text: str) -> None:
    try:
        parse_properties(text, "test")
    except ConfigError:
        pass
