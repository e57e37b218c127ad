"""docs/THREADS.md names every thread that a member of a cluster starts."""

from __future__ import annotations

import re
import threading

import pytest

from kbroker.client import AdminClient, Producer
from tests.kit import build
from tests.kit.cluster.members import WAIT_S, Members, await_that

PAGE = build.ROOT / "docs" / "THREADS.md"
OF_MEMBERS = {
    "control-0",
    "controller-door-0",
    "coordinator-peers",
    "lead-checks",
    "zookeeper",
    "membership",
    "controller",
    "replication",
    "kbroker-client-broker-N",
    "fetcher-LEADER-M",
    "replica-truncation-N",
    "zookeeper-close",
}
"""The threads that a broker which is alone has not, by their names in the page; without those of rare accidents."""
CLIENT_ID = "of-the-test"


@pytest.fixture
def started(members: Members, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the threads that were started since by anybody but clients, however short their lives were."""
    names: set[str] = set()
    start = threading.Thread.start

    def note(thread: threading.Thread) -> None:
        if not thread.name.endswith(CLIENT_ID):
            names.add(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note)
    return names


def explained() -> dict[str, re.Pattern[str]]:
    """Return the names of a broker's threads in the page, and what each matches: N, M and LEADER are numbers."""
    table = PAGE.read_text().partition("The threads of a client object")[0]
    names = re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)
    return {name: re.compile(re.sub(r"-(N|M|LEADER)\b", r"-\\d+", name)) for name in names}


def work(members: Members) -> None:
    """Commit a transaction on two brokers, and an offset that its coordinator asks the other broker about."""
    client = {"bootstrap_servers": f"127.0.0.1:{members.running[1].port}", "client_id": CLIENT_ID}
    with Producer(**client, transactional_id="t") as producer:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        for partition in (0, 1):
            producer.send("t", b"x", partition=partition)
        producer.commit_transaction(WAIT_S)
    with AdminClient(**client) as admin:
        admin.alter_offsets("g", {("t", 0): 1})
        assert admin.committed("g")


def test_every_thread_of_a_member_has_a_name_that_the_documents_explain(members: Members, started: set[str]) -> None:
    members.start_all(1, 2)
    members.create("t", 2, 2)
    await_that(lambda: all(members.leader_of("t", each) is not None for each in (0, 1)))
    work(members)
    members.stop(2)
    members.stop(1)
    patterns = explained()
    assert {name for name in started if not any(each.fullmatch(name) for each in patterns.values())} == set()
    assert {name for name in OF_MEMBERS if not any(map(patterns[name].fullmatch, started))} == set()
