"""The store of a broker that was alone: where it is no member starts, and it is put aside when it was carried."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cluster.joining import CannotJoin
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.errors import ConfigError
from kbroker.server.found_logs import refuse_carried
from kbroker.server.own_store import put_aside, refuse_own_store


def test_a_store_in_any_log_directory_keeps_a_member_from_starting_until_it_is_put_aside(tmp_path: Path) -> None:
    log_dirs = [tmp_path / "a", tmp_path / "b"]
    for each in log_dirs:
        each.mkdir()
    refuse_own_store(log_dirs, "zk:2181")
    path = log_dirs[1] / "coordination.sqlite"
    EmbeddedStore(str(path)).stop()
    command = f"cluster export --zookeeper zk:2181 --data {log_dirs[0]} --data {log_dirs[1]}`"
    with pytest.raises(CannotJoin, match=f"{path} has topics .*{command}"):
        refuse_own_store(log_dirs, "zk:2181")
    refuse_carried(log_dirs)

    aside = put_aside(str(path))
    assert (Path(aside).exists(), path.exists()) == (True, False)
    refuse_own_store(log_dirs, "zk:2181")
    with pytest.raises(ConfigError, match=f"{log_dirs[1]} is that of a member"):
        refuse_carried(log_dirs)
