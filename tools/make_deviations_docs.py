"""Writes docs/DEVIATIONS.md from the oracle's table."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import generated_page

sys.path.insert(0, str(generated_page.DOCS.parent))

from kbroker.protocol.api import SERVED
from tests.oracle.cluster_deviations import IN_CLUSTERS
from tests.oracle.deviations import DEVIATIONS, Deviation
from tests.oracle.other_deviations import OTHERS

HEAD = """# Where kbroker differs from Apache Kafka

Made by `make docs` from `tests/oracle/deviations.py`, `cluster_deviations.py` and `other_deviations.py`; do not edit.

The same requests go to Apache Kafka 3.9.1 and to kbroker, for every API that clients use at every version that both
serve, with what works and with every error that Kafka can give there on a single broker (`tests/oracle/errors.py` lists
them). The answers are equal field by field, but for this list. Not compared are ids that are drawn at random, times,
ports and throttle times; of texts only whether there is one; and the consumer group protocol (KIP-848), which is
Kafka 4.3's. A difference that is not listed fails its test, and so does a listed one that is gone.

In the same way the nodes of the coordination store are compared with those that Apache Kafka 3.9.1 keeps in a real
ZooKeeper (`tests/oracle/test_znodes.py`), and the files of stopped brokers byte for byte
(`tests/oracle/test_files.py`).

For clusters, one history goes to three Apache Kafkas, to three kbrokers and to clusters of both. It must leave the same
nodes, the same bytes in the logs of topics, and the same in the records of groups and transactions, but for times and
ids of members (`tests/oracle/test_cluster_tree.py`). Controllers must tell brokers the same; and brokers must give the
same answers to each other, for every API that only brokers use, and what replicas and clients ask a member and its
controller, at every version (`tests/oracle/test_cluster_control.py`).
"""
TEST = "tests/oracle/test_answers.py::test_kbroker_answers_as_kafka_does"


def versions(deviation: Deviation) -> str:
    served = SERVED[deviation.api]
    first, last = max(deviation.since, served.min), min(deviation.until, served.max)
    if (first, last) == (served.min, served.max):
        return ""
    return f" (version {first})" if first == last else f" (versions {first} to {last})"


def sections() -> Iterator[str]:
    for api in SERVED:
        listed = [one for one in DEVIATIONS if one.api == api]
        if listed:
            yield f"\n## {api.label}\n"
        for one in listed:
            tests = ", ".join(f"`{scenario.split('.')[1]}`" for scenario in one.scenarios)
            text = f"- {one.what}{versions(one)} *Why:* {one.why} *Scenario:* {tests}."
            yield generated_page.wrapped(text)
    for heading, others in (("In a cluster", IN_CLUSTERS), ("Other", OTHERS)):
        yield f"\n## {heading}\n"
        for other in others:
            text = f"- **{other.subject}**: {other.what} *Why:* {other.why} *Test:* `{other.test}`."
            yield generated_page.wrapped(text)


def document() -> str:
    """Return the whole text of docs/DEVIATIONS.md."""
    return HEAD + f"Scenarios are those of `{TEST}`.\n" + "\n".join(sections()) + "\n"


if __name__ == "__main__":
    raise SystemExit(generated_page.write("DEVIATIONS.md", document()))
