"""The harness for parsers of bytes from outside: whatever they are fed, only the project's exceptions may come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kbroker.errors import KbrokerError


def mangled(whole: bytes, every_bit: bool = False) -> Iterator[tuple[str, bytes]]:
    """Yield `whole` cut at each length, with bytes behind it, and with each byte (or bit) changed; each with a name."""
    for size in range(len(whole)):
        yield f"cut to {size} bytes", whole[:size]
    for tail in (b"\0", b"\xff", whole, whole[: len(whole) // 2]):
        yield f"followed by {len(tail)} bytes", whole + tail
    for at in range(len(whole)):
        masks = [1 << bit for bit in range(8)] if every_bit else [0x01, 0x80, 0xFF]
        for mask in masks:
            yield f"byte {at} xor {mask:#x}", whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :]


def feed(parse: Callable[[bytes], object], whole: bytes, every_bit: bool = False) -> int:
    """Parse `whole` (must succeed), then every mangled form; returns how many of these were refused."""
    parse(whole)
    refused = 0
    for name, data in mangled(whole, every_bit):
        try:
            parse(data)
        except KbrokerError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{name}: {error!r} came out for {data.hex()}") from error
    return refused
