"""Writes `docs/PROTOCOL.md` from `kbroker/protocol/api.py`.

Run: `python tools/make_protocol_docs.py [--check]`; `--check` only says whether the page is current.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kbroker.protocol.api import SERVED, ApiKey, request_class

PAGE = Path(__file__).resolve().parent.parent / "docs" / "PROTOCOL.md"

HEAD = """\
# The protocol that kbroker serves

Written by `tools/make_protocol_docs.py` from `kbroker/protocol/api.py`; do not edit.

The messages are those of Apache Kafka 3.9. "Flexible from" is the first version with compact sizes and tagged fields
(KIP-482). Where a range differs from that of Kafka 3.9, or an API is served only in part, the last column says so;
`docs/DEVIATIONS.md` has the reasons.

"""

NOTES = {
    ApiKey.SASL_HANDSHAKE: "ILLEGAL_SASL_STATE on a listener without SASL, as in Kafka",
    ApiKey.SASL_AUTHENTICATE: "ILLEGAL_SASL_STATE on a listener without SASL, as in Kafka",
    ApiKey.API_VERSIONS: "an unknown version is answered in version 0 with UNSUPPORTED_VERSION (KIP-511)",
}

TAIL = """
A request of any other API or version closes its connection, with one log line. So does a request whose bytes do not
parse: counts and sizes are believed only as far as bytes are there, strings must be UTF-8, and one message has
at most 1,048,576 array elements. Unknown tagged fields are skipped, and so is what follows the message.

Known, not served: """


def versions(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def note(api_key: ApiKey) -> str:
    served, known = SERVED[api_key], request_class(api_key)
    notes = [NOTES[api_key]] if api_key in NOTES else []
    if served.answered_from:
        refused = versions(served.min, served.answered_from - 1)
        notes.append(f"{refused} is advertised and answered with UNSUPPORTED_VERSION")
    if (served.min, served.max) != (known.MIN_VERSION, known.MAX_VERSION):
        notes.append(f"Kafka 3.9: {versions(known.MIN_VERSION, known.MAX_VERSION)}")
    return "; ".join(notes)


def page() -> str:
    lines = ["| key | API | versions | flexible from | |", "|---|---|---|---|---|"]
    for api_key, served in SERVED.items():
        flexible = "" if served.flexible_from is None else served.flexible_from
        lines.append(
            f"| {api_key:d} | {api_key.label} | {versions(served.min, served.max)} | {flexible} | {note(api_key)} |"
        )
    others = ", ".join(f"{api_key:d} {api_key.label}" for api_key in ApiKey if api_key not in SERVED)
    return HEAD + "\n".join(lines) + "\n" + TAIL + others + ".\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether the page is current")
    options = parser.parse_args()
    current = PAGE.exists() and PAGE.read_text() == page()
    if not options.check:
        PAGE.write_text(page())
    elif not current:
        print(f"{PAGE} is stale: run python tools/make_protocol_docs.py")
    return 0 if current or not options.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
