import pytest

from kbroker.errors import KbrokerError
from kbroker.net.addresses import parse_bootstrap


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a", [("a", 9092)]),
        ("a:1, b:2", [("a", 1), ("b", 2)]),
        ("[::1]:9093,[fe80::1]", [("::1", 9093), ("fe80::1", 9092)]),
    ],
)
def test_addresses_are_read(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize("text", ["", "a:", "a:b", "a:99999", "::1", "http://a:1", "a,,b"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(KbrokerError, match="is not HOST:PORT"):
        parse_bootstrap(text)
