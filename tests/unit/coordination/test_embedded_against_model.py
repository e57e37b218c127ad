"""The embedded store does what a dict does, through restarts, for every order of calls that hypothesis finds."""

import tempfile
from pathlib import Path

from hypothesis import settings

from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.store import Store
from tests.kit.models.coordination import CoordinationModel
from tests.kit.models.coordination_machine import CoordinationMachine


class EmbeddedMachine(CoordinationMachine):
    def make_model(self) -> CoordinationModel:
        # In memory: this is about what the tree says, not about how long an fsync takes.
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.path = str(Path(self.folder.name) / "store")
        return CoordinationModel()

    def start(self) -> None:
        self.store = EmbeddedStore(self.path)
        self.sessions = [self.store.connect(), self.store.connect()]
        self.watching = self.store.connect()

    def connect(self) -> Store:
        return self.store.connect()

    def expire(self, session: Store) -> None:
        self.store.expire(session.session_id)

    def stop(self) -> None:
        self.store.stop()

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestEmbeddedAgainstModel = EmbeddedMachine.TestCase
TestEmbeddedAgainstModel.settings = settings(max_examples=150, stateful_step_count=40)
