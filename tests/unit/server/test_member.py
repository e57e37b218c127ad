"""A broker with zookeeper.connect: what stands between it and the cluster there."""

import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.cluster.joining import CannotJoin
from kbroker.config.broker_config import load_config
from kbroker.errors import ConfigError
from kbroker.server.broker import Broker
from tests.kit.brokers.process import free_port

MAP = {"listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT"}


def broker(folder: Path, **settings: object) -> Broker:
    given = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(folder / "data"),
        "zookeeper.connect": f"127.0.0.1:{free_port()}/none",
        "zookeeper.connection.timeout.ms": "300",
        **{name.replace("_", "."): str(value) for name, value in settings.items()},
    }
    return Broker(load_config(None, [f"{name}={value}" for name, value in given.items()], environment={}))


def refusal(made: Broker, error: type[Exception] = CannotJoin) -> str:
    try:
        with pytest.raises(error) as raised:
            made.start()
    finally:
        made.stop()
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_a_start_without_its_zookeeper_says_which_setting(tmp_path: Path) -> None:
    text = refusal(broker(tmp_path))
    assert text.startswith("zookeeper.connect=127.0.0.1:")
    assert text.endswith("cannot be reached, or does not answer (zookeeper.connection.timeout.ms=300)")


def test_an_id_above_the_reserved_ones_is_refused_while_ids_are_generated(tmp_path: Path) -> None:
    text = refusal(broker(tmp_path, broker_id=1001), ConfigError)
    assert "broker.id=1001 is above reserved.broker.max.id=1000" in text
    other = broker(tmp_path, broker_id=1001, broker_id_generation_enable="false")
    assert "cannot be reached" in refusal(other)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_a_listener_on_every_interface_that_is_not_advertised_is_refused_before_all_else(
    tmp_path: Path, host: str
) -> None:
    text = refusal(broker(tmp_path, listeners=f"PLAINTEXT://127.0.0.1:0,OTHER://{host}:0", **MAP), ConfigError)
    assert text == f"listener OTHER://{host}:0: set advertised.listeners, for no other broker can connect to that"
    advertised = broker(
        tmp_path,
        listeners=f"PLAINTEXT://{host}:0,OTHER://:0",
        advertised_listeners="PLAINTEXT://broker.example:9092",
        **MAP,
    )
    assert "cannot be reached" in refusal(advertised), "it goes on to its ZooKeeper"


def test_a_control_plane_listener_is_one_of_the_listeners(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"control\.plane\.listener\.name=INSIDE: not among listeners"):
        broker(tmp_path, control_plane_listener_name="INSIDE")
    with pytest.raises(ConfigError, match="it is the inter-broker listener too"):
        broker(tmp_path, control_plane_listener_name="PLAINTEXT")


MODULES = """
import sys
from kbroker.config.broker_config import load_config
from kbroker.server.broker import Broker
overrides = ["listeners=PLAINTEXT://127.0.0.1:0", "zookeeper.connect=localhost:2181", "enable.zookeeper=false"]
broker = Broker(load_config(None, overrides, sys.argv[1], {}))
broker.start()
print(*(name in sys.modules for name in ("kazoo", "kbroker.server.member", "kbroker.cluster.peers")))
broker.stop()
"""


def test_a_broker_that_is_alone_does_not_load_what_a_member_takes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MODULES, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, check=True, timeout=60).stdout == b"False False False\n"
