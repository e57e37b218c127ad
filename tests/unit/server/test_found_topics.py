"""A broker over logs that its store does not know: their topics, until somebody gives them settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli.main import main
from kbroker.coordination.embedded import store_path
from kbroker.model import TopicPartition
from kbroker.storage.options import LogOptions
from tests.kit.brokers.whole import WholeBroker

SETTINGS: dict[str, object] = {"log.cleanup.policy": "compact,delete", "log.retention.ms": 1000}
NAMES = ("orders", "table", "plain")


def command(broker: WholeBroker, *words: str) -> None:
    assert main([*words, "-b", f"127.0.0.1:{broker.port}"]) == 0


def options(broker: WholeBroker, topic: str) -> LogOptions:
    log = broker.broker._logs.get(TopicPartition(topic, 0))
    assert log is not None
    return log.options


def are_kept(broker: WholeBroker) -> list[str]:
    """Return the topics of which no record may be deleted."""
    found = {name: options(broker, name) for name in NAMES}
    return [name for name, each in found.items() if not each.compacted and not each.deleted_by_retention]


def test_topics_without_settings_are_kept_until_they_are_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with WholeBroker(tmp_path, SETTINGS) as broker:
        for name in NAMES:
            command(broker, "topics", "create", name)
        assert are_kept(broker) == []
    for suffix in ("", "-wal"):
        Path(store_path(str(tmp_path)) + suffix).unlink(missing_ok=True)
    for _ in range(2):
        with WholeBroker(tmp_path, SETTINGS) as broker:
            assert are_kept(broker) == ["orders", "table", "plain"]
            # A default of the broker is not what the topic had.
            command(broker, "configs", "alter", "broker", "1", "--set", "log.retention.ms=5")
            assert are_kept(broker) == ["orders", "table", "plain"]
            assert main(["configs", "alter", "topic", "orders", "--set", "retention.ms=x", "-b", at(broker)]) == 1
            command(broker, "configs", "alter", "topic", "orders", "--set", "retention.ms=7", "--validate-only")
            assert are_kept(broker) == ["orders", "table", "plain"]
    for _ in range(2):
        with WholeBroker(tmp_path, SETTINGS) as broker:
            command(broker, "configs", "alter", "topic", "orders", "--set", "retention.ms=77")
            command(broker, "configs", "alter", "topic", "plain")
            assert are_kept(broker) == ["table"]
            assert (options(broker, "orders").retention_ms, options(broker, "plain").compacted) == (77, True)
    caplog.clear()
    with WholeBroker(tmp_path, SETTINGS) as broker:
        assert are_kept(broker) == ["table"]
    (line,) = (line for line in caplog.messages if "settings are not known" in line)
    assert "in 1 topics whose settings are not known: table; give them" in line


def test_a_broker_with_another_id_says_what_it_does_not_serve(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with WholeBroker(tmp_path) as broker:
        command(broker, "topics", "create", "orders")
    with WholeBroker(tmp_path):
        assert not [line for line in caplog.messages if "belong to others" in line]
    meta = tmp_path / "meta.properties"
    meta.write_text(meta.read_text().replace("broker.id=1", "broker.id=7"))
    with WholeBroker(tmp_path):
        (line,) = (line for line in caplog.messages if "belong to others" in line)
    assert "this is broker 7, and partitions of 1 topics belong to others, so that nobody serves them: orders; " in line


def at(broker: WholeBroker) -> str:
    return f"127.0.0.1:{broker.port}"
