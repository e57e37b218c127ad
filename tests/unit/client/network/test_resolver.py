"""Names of brokers: client.dns.lookup."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from kbroker.client.errors import ConnectionFailed
from tests.kit.brokers.whole import WholeBroker
from tests.unit.client.conftest import MakeCluster
from tests.unit.client.network.test_cluster import run

CANONICAL = "resolve_canonical_bootstrap_servers_only"


class Names:
    """A resolver that knows 127.0.0.1 by several names."""

    def __init__(self, port: int, canonical: str | None):
        self.port = port
        self.canonical = canonical
        self.leads_back = True

    def getaddrinfo(self, host: str, port: int | None, **how: Any) -> list[Any]:
        if host == "nowhere.example":
            raise socket.gaierror(-2, "Name or service not known")
        address = "127.0.0.1" if host != self.canonical or self.leads_back else "127.0.0.9"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port or 0))]

    def gethostbyaddr(self, address: str) -> tuple[str, list[str], list[str]]:
        if self.canonical is None:
            raise socket.herror(1, "Unknown host")
        return self.canonical, [], [address]


@pytest.fixture
def names(broker: WholeBroker, monkeypatch: pytest.MonkeyPatch) -> Names:
    made = Names(broker.port, "one.kafka.example")
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    monkeypatch.setattr(socket, "gethostbyaddr", made.gethostbyaddr)
    return made


def address_of(cluster_of: MakeCluster, names: Names, servers: str, lookup: str) -> str:
    """Return the address of the first connection."""
    cluster = cluster_of(bootstrap_servers=servers, client_dns_lookup=lookup)
    return run(cluster, cluster.any_connection()).address.replace(str(names.port), "PORT")


@pytest.mark.parametrize("server", ["kafka.example", "127.0.0.1"])
def test_bootstrap_servers_are_connected_to_by_their_own_names(
    cluster_of: MakeCluster, names: Names, server: str
) -> None:
    assert address_of(cluster_of, names, f"{server}:{names.port}", CANONICAL) == "one.kafka.example:PORT"
    assert address_of(cluster_of, names, f"{server}:{names.port}", "use_all_dns_ips") == f"{server}:PORT"


def test_an_address_whose_name_is_not_known_or_not_its_own_stays_one(cluster_of: MakeCluster, names: Names) -> None:
    names.leads_back = False
    assert address_of(cluster_of, names, f"kafka.example:{names.port}", CANONICAL) == "127.0.0.1:PORT"
    names.canonical = None
    assert address_of(cluster_of, names, f"kafka.example:{names.port}", CANONICAL) == "127.0.0.1:PORT"


def test_a_server_without_an_address_is_passed_over_and_told_if_it_is_the_only_one(
    cluster_of: MakeCluster, names: Names
) -> None:
    servers = f"nowhere.example:1,kafka.example:{names.port}"
    assert address_of(cluster_of, names, servers, CANONICAL) == "one.kafka.example:PORT"
    with pytest.raises(ConnectionFailed, match=r"cannot connect to nowhere.example:1: Name or service not known"):
        address_of(cluster_of, names, "nowhere.example:1", CANONICAL)


def test_other_words_are_refused() -> None:
    from kbroker.client import AdminClient

    with pytest.raises(ValueError, match="must be one of 'use_all_dns_ips', 'resolve_canonical"):
        AdminClient({"client.dns.lookup": "default"})
