"""Reads topics and configs from the tree for a member of a cluster: what somebody has written there must not stop it.

A node that cannot be read, and a value that this release does not know, is passed over with one line in the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kbroker.cluster.group_configs import GROUP_CONFIGS
from kbroker.cluster.image import NO_LEADER, Partition, Topic
from kbroker.cluster.loading import load_assignments, load_broker_configs, load_configs, load_group_configs
from kbroker.cluster.topic_configs import TOPIC_CONFIGS
from kbroker.coordination import paths
from kbroker.coordination.store import Store
from kbroker.errors import ConfigError

log = logging.getLogger(__name__)

MOST_TOLD = 1000
"""How many different complaints are remembered, so that each is told once."""


class OwnConfigs(NamedTuple):
    """A topic's own configs, without those that could not be read."""

    configs: Mapping[str, str]
    is_whole: bool
    """Whether all could be read. If not, nothing may be deleted from the topic or compacted."""


_UNREADABLE = OwnConfigs({}, False)


class MemberNodes:
    """Reads nodes that others may have written. Thread-safe."""

    def __init__(self, check_broker_config: Callable[[str, str], object]):
        """`check_broker_config`, called with name and text, raises ConfigError if no broker may have such a config."""
        self._check_broker_config = check_broker_config
        self._lock = threading.Lock()  # guards `_told`; taken alone
        self._told: set[str] = set()

    def _tell(self, complaint: str) -> None:
        with self._lock:
            is_new = complaint not in self._told and len(self._told) < MOST_TOLD
            if is_new:
                self._told.add(complaint)
        if is_new:
            log.error("%s", complaint)

    def _pass_over(self, error: paths.StoreCorrupt) -> None:
        self._tell(f"passed over, for it cannot be read: {error}")

    def configs_in(self, path: str, data: bytes) -> Mapping[str, str]:
        """Return the configs in a node that is about to be written; {} if they cannot be read, as in Kafka."""
        try:
            return paths.decode_config(path, data)
        except paths.StoreCorrupt as error:
            self._pass_over(error)
            return {}

    def assigned(self, store: Store) -> dict[str, Topic]:
        """Return all topics with their replicas and own configs, without leaders and ISRs."""
        assignments = load_assignments(store, store.children(paths.TOPICS), self._pass_over)
        configs = self.topic_configs(store, assignments)
        topics = {}
        for name, assignment in assignments.items():
            partitions = (
                Partition(each, NO_LEADER, 0, assignment.replicas.get(each, ()), ())
                for each in range(max(assignment.replicas, default=-1) + 1)
            )
            own, is_whole = configs[name]
            topics[name] = Topic(name, assignment.topic_id, tuple(partitions), own, configs_given=is_whole)
        return topics

    def topic_configs(self, store: Store, names: Iterable[str]) -> dict[str, OwnConfigs]:
        """Return the own configs of topics; none for one without a node."""
        path_of = {name: paths.topic_config_path(name) for name in names}
        found = load_configs(store, path_of, self._pass_over)
        return {name: self._checked(name, found[name] or {}) if name in found else _UNREADABLE for name in path_of}

    def _checked(self, name: str, configs: Mapping[str, str]) -> OwnConfigs:
        valid = self._valid(configs, _check_topic_config, f"topic {name}, nothing is deleted from it or compacted")
        return OwnConfigs(valid, len(valid) == len(configs))

    def _valid(self, configs: Mapping[str, str], check: Callable[[str, str], object], whose: str) -> Mapping[str, str]:
        bad = []
        for name, text in configs.items():
            try:
                check(name, text)
            except ConfigError as error:
                self._tell(f"a config is passed over: {whose}: {error}")
                bad.append(name)
        return {name: text for name, text in configs.items() if name not in bad} if bad else configs

    def broker_configs(self, store: Store, before: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
        """Return the dynamic configs of brokers; those `before` for a node that cannot be read."""
        passed: list[str] = []
        found = load_broker_configs(store, lambda error: self._pass_over_into(passed, error))
        valid = {
            entity: self._valid(configs, self._check_broker_config, f"broker {entity}")
            for entity, configs in found.items()
        }
        return valid | {
            entity: configs for entity, configs in before.items() if paths.broker_config_path(entity) in passed
        }

    def group_configs(self, store: Store, before: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
        """Return the configs of groups; those `before` for a node that cannot be read."""
        passed: list[str] = []
        found = load_group_configs(store, lambda error: self._pass_over_into(passed, error))
        valid = {
            group_id: self._valid(configs, _check_group_config, f"group {group_id}")
            for group_id, configs in found.items()
        }
        return valid | {
            group_id: configs for group_id, configs in before.items() if paths.group_config_path(group_id) in passed
        }

    def _pass_over_into(self, passed: list[str], error: paths.StoreCorrupt) -> None:
        passed.append(error.path)
        self._pass_over(error)


def _check_topic_config(name: str, text: str) -> None:
    if name in TOPIC_CONFIGS:
        TOPIC_CONFIGS[name].parse(text)


def _check_group_config(name: str, text: str) -> None:
    if name in GROUP_CONFIGS:
        GROUP_CONFIGS[name].parse(text)
