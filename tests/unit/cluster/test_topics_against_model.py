"""Topics do what a dict does, through failing disks, restarts and crashes in the middle of a change."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kbroker.cluster.image import Topic
from kbroker.cluster.new_topics import NewTopic
from kbroker.coordination import paths
from kbroker.errors import KbrokerError, ProtocolError
from tests.kit.parts.cluster import Cluster
from tests.kit.parts.folder_host import Crash

NAMES = st.sampled_from(["a", "b", "a.b", "a_b"])
COUNTS = st.integers(1, 3)
CONFIGS = st.dictionaries(st.sampled_from(["retention.ms", "segment.ms"]), st.integers(1, 9).map(str))
STEPS = st.one_of(st.none(), st.none(), st.integers(0, 8))
FAILING = st.sampled_from([(), (), ("a-0",), ("a-1", "b-1"), ("a-2", "b-3", "a.b-1")]).map(set)

State = dict[str, tuple[int, dict[str, str]]]
"""Partition count and configs by name."""


def collides(name: str, state: State) -> bool:
    return any(other.replace(".", "_") == name.replace(".", "_") for other in state)


class TopicsMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.cluster = Cluster(Path(self.folder.name))
        self.state: State = {}

    def teardown(self) -> None:
        self.cluster.close()
        self.folder.cleanup()

    def attempt(self, after: State, change: Callable[[], object], steps: int | None, failing: set[str]) -> None:
        """`change` leads to `after`. If the disk fails or the process dies it may not, but then nothing has changed."""
        host = self.cluster.host
        host.steps_until_crash, host.failing = steps, failing
        try:
            change()
            wanted = [after]
        except Crash:
            wanted = [self.state, after]
        except KbrokerError:
            assert failing or after == self.state
            wanted = [self.state]
        crashed = host.steps_until_crash is not None and host.steps_until_crash < 0
        host.steps_until_crash, host.failing = None, set()
        if crashed or failing:
            self.cluster.reopen()
        found = self.seen()
        assert found in wanted, (found, wanted)
        self.state = found

    def seen(self) -> State:
        topics = self.cluster.topics.image.topics
        return {name: (len(topic.partitions), dict(topic.configs)) for name, topic in topics.items()}

    @rule(name=NAMES, count=COUNTS, configs=CONFIGS, steps=STEPS, failing=FAILING)
    def create(self, name: str, count: int, configs: dict[str, str], steps: int | None, failing: set[str]) -> None:
        def change() -> None:
            result = self.cluster.topics.create([NewTopic(name, count, 1, configs=configs)])[0]
            if isinstance(result, ProtocolError):
                raise result

        if collides(name, self.state):
            self.attempt(self.state, change, None, set())
        else:
            self.attempt({**self.state, name: (count, configs)}, change, steps, failing)

    @rule(names=st.lists(NAMES, min_size=1, max_size=3, unique=True))
    def ensure(self, names: list[str]) -> None:
        for name, result in zip(names, self.cluster.topics.ensure(names), strict=True):
            if name in self.state or not collides(name, self.state):
                assert isinstance(result, Topic) or any(collides(name, {other: (0, {})}) for other in names)
            if isinstance(result, Topic):
                self.state.setdefault(name, (2, {}))

    @rule(name=NAMES, steps=STEPS, failing=FAILING)
    def delete(self, name: str, steps: int | None, failing: set[str]) -> None:
        after = {other: each for other, each in self.state.items() if other != name}
        self.attempt(after, lambda: self.cluster.topics.delete(name), steps, failing)

    @rule(name=NAMES, count=st.integers(1, 5), steps=STEPS, failing=FAILING)
    def grow(self, name: str, count: int, steps: int | None, failing: set[str]) -> None:
        after = dict(self.state)
        if name in after:
            after[name] = (max(count, after[name][0]), after[name][1])
        self.attempt(after, lambda: self.cluster.topics.add_partitions(name, count), steps, failing)

    @rule(name=NAMES, configs=CONFIGS)
    def configure(self, name: str, configs: dict[str, str]) -> None:
        after = dict(self.state)
        if name in after:
            after[name] = (after[name][0], configs)
        self.attempt(after, lambda: self.cluster.topics.set_topic_configs(name, lambda _: configs), None, set())

    @rule()
    def restart(self) -> None:
        ids = {name: topic.topic_id for name, topic in self.cluster.topics.image.topics.items()}
        self.cluster.reopen()
        assert {name: topic.topic_id for name, topic in self.cluster.topics.image.topics.items()} == ids

    @invariant()
    def store_disk_and_image_agree(self) -> None:
        if not hasattr(self, "cluster"):
            return
        assert self.seen() == self.state
        partitions = {name: [str(each) for each in range(count)] for name, (count, _) in self.state.items()}
        assert self.cluster.host.names() == sorted(f"{name}-{each}" for name in partitions for each in partitions[name])
        session = self.cluster.session
        for path in (paths.TOPICS, paths.TOPIC_CONFIGS):
            assert session.children(path) == sorted(self.state)
        assert session.children(paths.DELETE_TOPICS) == []
        for name, topic in self.cluster.topics.image.topics.items():
            assert session.children(paths.partitions_path(name)) == partitions[name]
            data = session.get(paths.topic_path(name))[0]
            assert sorted(paths.decode_topic(name, data).replicas) == [int(each) for each in partitions[name]]
            on_disk = (self.cluster.host.folder / f"{name}-0" / "topic_id").read_text()
            assert on_disk == paths.encode_uuid(topic.topic_id)


TestTopicsAgainstModel = TopicsMachine.TestCase
TestTopicsAgainstModel.settings = settings(max_examples=100, stateful_step_count=20)
