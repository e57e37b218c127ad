"""Writes docs/PROTOCOL.md from the table of APIs."""

from __future__ import annotations

import generated_page

from kbroker.protocol.api import SERVED, ApiKey, request_class

HEAD = """\
# The protocol that kbroker serves

Written by `tools/make_protocol_docs.py` from `kbroker/protocol/api.py`; do not edit.

The messages are those of Apache Kafka 3.9; consumer groups of the newer protocol (KIP-848) and transactions of version
2 (KIP-890: Produce 12, EndTxn 5, TxnOffsetCommit 5) are as in 4.3, and so is ListConfigResources 1 (KIP-1142).
"Flexible from" is the first version with compact sizes and tagged fields (KIP-482). Where a range differs from that of
Kafka 3.9, or an API is served only in part, the last column says so; `docs/DEVIATIONS.md` has the reasons.

"""

NOTES = {
    ApiKey.SASL_HANDSHAKE: "ILLEGAL_SASL_STATE on a listener without SASL, as in Kafka",
    ApiKey.SASL_AUTHENTICATE: "ILLEGAL_SASL_STATE on a listener without SASL, as in Kafka",
    ApiKey.DESCRIBE_QUORUM: "one voter, the broker itself",
    ApiKey.UPDATE_FEATURES: "whatever would change a feature is refused",
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "no metrics are wanted",
    ApiKey.LIST_CONFIG_RESOURCES: "version 0 is ListClientMetricsResources, of which there are none",
    ApiKey.API_VERSIONS: "an unknown version is answered in version 0 with UNSUPPORTED_VERSION (KIP-511)",
}

LAST_OF_3_9 = {
    ApiKey.PRODUCE: 11,
    ApiKey.END_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 0,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 0,
    ApiKey.LIST_CONFIG_RESOURCES: 0,
}
"""The last version in Kafka 3.9 of those messages that have versions of Kafka 4.3 too."""

TAIL = """
A request of any other API or version closes its connection, with one log line. So does a request whose bytes do not
parse: counts and sizes are believed only as far as bytes are there, strings must be UTF-8, and one message has
at most 1,048,576 array elements. Unknown tagged fields are skipped, and so is what follows the message.

"""


def versions(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def note(api_key: ApiKey) -> str:
    served, known = SERVED[api_key], request_class(api_key)
    notes = [NOTES[api_key]] if api_key in NOTES else []
    last = LAST_OF_3_9.get(api_key, known.MAX_VERSION)
    if (served.min, served.max) != (known.MIN_VERSION, last):
        notes.append(f"Kafka 3.9: {versions(known.MIN_VERSION, last)}")
    return "; ".join(notes)


def document() -> str:
    """Return the whole text of docs/PROTOCOL.md."""
    lines = ["| key | API | versions | flexible from | |", "|---|---|---|---|---|"]
    for api_key, served in SERVED.items():
        flexible = "" if served.flexible_from is None else served.flexible_from
        lines.append(
            f"| {api_key:d} | {api_key.label} | {versions(served.min, served.max)} | {flexible} | {note(api_key)} |"
        )
    others = ", ".join(f"{api_key:d} {api_key.label}" for api_key in ApiKey if api_key not in SERVED)
    return HEAD + "\n".join(lines) + "\n" + TAIL + generated_page.wrapped(f"Known, not served: {others}.") + "\n"


if __name__ == "__main__":
    raise SystemExit(generated_page.write("PROTOCOL.md", document()))
