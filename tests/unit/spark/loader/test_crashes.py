"""A load that is killed anywhere, and run again: every record is in the lake once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kbroker.spark.loader.commits import commit_files
from kbroker.spark.loader.commits.commit_files import all_commits
from kbroker.spark.loader.lake.storage import Directory
from kbroker.spark.loader.settings import Settings
from kbroker.testing import Broker
from tests.kit.spark import load as loads
from tests.kit.spark.load import create, fill, folding_campaign, killed_at, load, on_broker, settings_of, visible


def campaign(servers: str, topic: str, folder: Path, every: int) -> int:
    """Kill the second load of a lake before each `every`th of its steps; returns how many there are."""
    create(servers, topic, 2)
    fill(servers, topic, 2, 100)
    begun = folder / "begun"
    load(begun, servers, topic)
    before = visible(begun)
    fill(servers, topic, 2, 100, start=100)
    all_of_it = on_broker(servers, topic)
    step = 1
    while True:
        lake = folder / f"killed-at-{step}"
        shutil.copytree(begun, lake)
        was_killed = killed_at(step, settings_of(lake, servers, topic))
        seen = visible(lake)
        committed = sum(1 for _ in all_commits(Directory(str(lake))))
        if committed == 1:
            assert seen == before, f"step {step}"
        else:
            assert seen.items() <= all_of_it.items(), f"step {step}"
        again = load(lake, servers, topic)
        assert visible(lake) == all_of_it, f"step {step}"
        assert again.commits == ([2] if committed == 1 else []), f"step {step}"
        assert list((lake / "_kbload/staging").iterdir()) == [], f"step {step}"
        shutil.rmtree(lake)
        if not was_killed:
            return step
        step += every


def test_a_load_that_is_killed_goes_on(broker: Broker, topic: str, tmp_path: Path) -> None:
    assert campaign(broker.bootstrap_servers, topic, tmp_path, 7) > 30


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_load_that_is_killed_anywhere_goes_on(broker: Broker, topic: str, tmp_path: Path) -> None:
    assert campaign(broker.bootstrap_servers, topic, tmp_path, 1) > 30


def fold_and_die(step: int, settings: Settings) -> None:
    commit_files.BUNDLE = 2
    loads.load_and_die(step, settings)


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_a_load_that_is_killed_while_it_folds_goes_on(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    settings = settings_of(tmp_path / "lake", broker.bootstrap_servers, topic)
    assert folding_campaign(settings, fold_and_die, lambda: visible(settings.lake), every, monkeypatch) > 30
