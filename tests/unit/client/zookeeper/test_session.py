"""A client's session that expires."""

from __future__ import annotations

import threading

from kbroker.client.config.parsing import parse_options
from kbroker.client.config.zookeeper import ZOOKEEPER
from kbroker.client.zookeeper.session import Session
from tests.kit.kafka.zookeeper import ZooKeeperProcess
from tests.kit.parts.processors import wait_until

WAIT_S = 60.0


def test_a_session_that_expires_while_listeners_hear_of_it_is_told_of_behind_that(zookeeper: ZooKeeperProcess) -> None:
    session = Session(parse_options(ZOOKEEPER, None, {"zookeeper_connect": zookeeper.address}))
    first = session.store
    heard: list[str] = []
    is_told_between = threading.Event()

    def expired() -> None:
        heard.append("expired")
        if "renewed" in heard:
            is_told_between.set()

    def renewed() -> None:
        heard.append("renewed")
        if heard.count("renewed") == 1:
            zookeeper.expire(session.store)
            is_told_between.wait(1)
            heard.append("done")

    session.on_expired.append(expired)
    session.on_renewed.append(renewed)
    try:
        zookeeper.expire(first)
        wait_until(lambda: heard.count("renewed") == 2, "the second session does not begin", WAIT_S)
        wait_until(lambda: "done" in heard, "the first listener does not end", WAIT_S)
        assert heard == ["expired", "renewed", "done", "expired", "renewed"]
        assert session.store.children("/") != []
    finally:
        session.close()
