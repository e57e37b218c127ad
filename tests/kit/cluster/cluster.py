"""A ZooKeeper and some brokers, with every fault that a test may do to them, and what heals them again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.process import MEMORY_DISK
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.cluster import tree
from tests.kit.cluster.network import Network, network
from tests.kit.cluster.nodes import KINDS, REPLICATED, Node
from tests.kit.crash.small_disk import fill, mount
from tests.kit.kafka.zookeeper import Node as TreeNode
from tests.kit.kafka.zookeeper import ZooKeeperProcess

SETTLE_TIMEOUT_S = 90.0
"""How long a healed cluster may take until every replica is in sync again."""
PREFIX = "kbroker-cluster-"
OWNER = "owner.lock"


class NotSettled(Exception):
    """Raised when a healed cluster does not come to rest. The message says what is missing."""


class Cluster:
    """The cluster, as a context manager; `nodes` maps broker ids, from 1 on, to brokers.

    `kinds` says what each broker is: "kafka" or "kbroker". `settings` are added to those of all brokers. `disk` is the
    size of the small file system that each broker has for its data, as tmpfs takes it ("256m"); None: a directory.
    The test is skipped without the permission to mount them. `directories`: how many log directories each broker has,
    without a disk of its own.
    Several threads may do faults at a time, to different brokers.
    """

    def __init__(
        self,
        kinds: Sequence[str] = ("kafka", "kafka", "kafka"),
        settings: Mapping[str, object] | None = None,
        *,
        disk: str | None = None,
        directories: int = 1,
        connected: Callable[[], Network] = network,
    ):
        remove_ownerless()
        room = MEMORY_DISK if MEMORY_DISK.is_dir() and shutil.disk_usage(MEMORY_DISK).free > 4 << 30 else None
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=room))
        self._lock = os.open(self.folder / OWNER, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.network = connected()
        self.zookeeper = ZooKeeperProcess(self.folder / "zookeeper", self.network.add_host("zookeeper"))
        self.nodes: dict[int, Node] = {}
        self.disk = disk
        self._directories = directories
        self._settings = {**REPLICATED, **(settings or {})}
        try:
            for kind in kinds:
                self._new_node(kind)
        except BaseException:
            self.close()
            raise

    def _new_node(self, kind: str) -> Node:
        node_id = len(self.nodes) + 1
        host = self.network.add_host(f"{kind}-{node_id}")
        folder = self.folder / f"{kind}-{node_id}"
        data = folder / ("disk/data" if self.disk else "data")
        folder.mkdir()
        if self.disk:
            data.parent.mkdir()
            mount("-t", "tmpfs", "-o", f"size={self.disk}", "tmpfs", str(data.parent))
        node = KINDS[kind](node_id, host, folder, self.zookeeper.address, self._settings, data)
        node.add_directories(*(folder / f"data-{number}" for number in range(2, self._directories + 1)))
        self.nodes[node_id] = node
        return node

    def add(self, kind: str) -> Node:
        """Start one more broker, and wait until the cluster is at rest with it."""
        node = self._new_node(kind)
        node.start()
        self.await_settled()
        return node

    def replace(self, node_id: int, kind: str) -> None:
        """Stop a broker, start one of another kind with its id, address, settings and data, and wait until the cluster
        is at rest with it."""
        before = self.nodes[node_id]
        before.stop()
        folder = self.folder / f"{kind}-{node_id}-{time.monotonic_ns()}"
        node = KINDS[kind](node_id, before.host, folder, self.zookeeper.address, self._settings, before.data)
        node.add_directories(*before.directories[1:])
        node.take_place_of(before)
        self.nodes[node_id] = node
        self.start([node_id])
        self.await_settled()

    # --- questions ----------------------------------------------------------------------------------------
    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    def entered(self) -> contextlib.AbstractContextManager[None]:
        """A block in which this thread, and all threads and processes that it starts, are clients of the cluster."""
        return self.network.entered()

    def tree(self) -> dict[str, TreeNode]:
        """Return all nodes of ZooKeeper's tree."""
        with self.entered():
            return self.zookeeper.nodes()

    @property
    def has_zookeeper(self) -> bool:
        """Whether ZooKeeper's process is there."""
        return self.zookeeper.process is not None and self.zookeeper.process.poll() is None

    def controller(self) -> int:
        """Return the id of the controller, -1 if there is none or ZooKeeper is away."""
        node = self.tree().get("/controller") if self.has_zookeeper else None
        return int(json.loads(node.data)["brokerid"]) if node is not None else -1

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the id of a partition's leader by ZooKeeper, -1 if it has none or ZooKeeper is away."""
        path = f"/brokers/topics/{topic}/partitions/{partition}/state"
        state = self.tree().get(path) if self.has_zookeeper else None
        return int(json.loads(state.data)["leader"]) if state is not None else -1

    # --- faults -------------------------------------------------------------------------------------------
    def kill(self, *node_ids: int) -> None:
        """Kill brokers (SIGKILL), all at once."""
        for node_id in node_ids:
            if self.nodes[node_id].is_running:
                self.nodes[node_id].kill()

    def cut(self, one: int, other: int, *, both_ways: bool = True) -> None:
        """Drop all packets from one broker to the other, and the other way too."""
        self.network.cut(self.nodes[one].host, self.nodes[other].host, both_ways=both_ways)

    def cut_zookeeper(self, node_id: int) -> None:
        """Drop all packets between a broker and ZooKeeper."""
        self.network.cut(self.nodes[node_id].host, self.zookeeper.host)

    def isolate(self, node_id: int, *, clients_too: bool = True) -> None:
        """Drop all packets between a broker and everybody else."""
        self.network.isolate(self.nodes[node_id].host, clients_too=clients_too)

    def fill_disk(self, node_id: int) -> None:
        """Fill a broker's disk up to the last byte. Only with `disk`."""
        assert self.disk, "this cluster's brokers have no disks of their own"
        fill(self.nodes[node_id].data.parent)

    def pause_zookeeper(self, seconds: float) -> None:
        """Stop ZooKeeper (SIGSTOP) for some time. Sessions go on as if that time had not been."""
        process = self.zookeeper.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            process.send_signal(signal.SIGCONT)

    def free_disk(self, node_id: int) -> None:
        """Make room on a broker's disk. A broker that is about to end itself is killed: else it would end later."""
        node = self.nodes[node_id]
        filler = node.data.parent / "filler"
        if filler.exists() and node.ends_without_room and node.is_running:
            node.kill()
        filler.unlink(missing_ok=True)

    # --- health -------------------------------------------------------------------------------------------
    def heal(self) -> None:
        """End all faults: the network is whole, paused processes go on, disks have room, and what has ended runs."""
        self.network.mend()
        for node in self.nodes.values():
            if node.is_paused:
                node.resume()
            if self.disk:
                self.free_disk(node.node_id)
        if not self.has_zookeeper:
            self.zookeeper.start()
        self.start([node.node_id for node in self.nodes.values() if not node.is_running])

    def start(self, node_ids: Sequence[int]) -> None:
        """Start brokers, all at once, and wait until each serves."""
        began = [(self.nodes[node_id], self.nodes[node_id].begin()) for node_id in node_ids]
        for node, started in began:
            node.await_member(started)

    def await_settled(self, timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        """Wait until all brokers are registered and every replica is in sync. Raises NotSettled, with thread dumps in
        the brokers' output, when it takes longer."""
        deadline = time.monotonic() + timeout_s
        while True:
            missing = tree.unrest(self.tree(), self.nodes) or self._untold()
            if not missing:
                return
            ended = [node.node_id for node in self.nodes.values() if not node.is_running]
            if ended or time.monotonic() > deadline:
                for node in self.nodes.values():
                    node.dump_threads()
                raise NotSettled(f"{f'brokers {ended} have ended' if ended else ''}; ".lstrip("; ") + missing)
            time.sleep(0.2)

    def _untold(self) -> str:
        """Return which broker does not know all the others yet; "" for none."""
        for node in self.nodes.values():
            try:
                with self.entered(), WireClient(node.host.address, node.port, timeout_s=5) as client:
                    answer = client.call(ApiKey.METADATA, 9, M.MetadataRequest(topics=[]))
            except (OSError, ConnectionClosed) as error:
                return f"broker {node.node_id} does not answer: {error}"
            known = sorted(broker.node_id for broker in answer.brokers)
            if known != sorted(self.nodes) or answer.controller_id < 0:
                return f"broker {node.node_id} knows {known} and the controller {answer.controller_id}"
        return ""

    # --- life ---------------------------------------------------------------------------------------------
    def __enter__(self) -> Self:
        try:
            self.zookeeper.start()
            self.start(list(self.nodes))
            self.await_settled()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes, and remove all they have left. What a broker has printed is shown if it is a crash."""
        for node in self.nodes.values():
            with contextlib.suppress(ProcessLookupError):
                if node.is_running:
                    node.kill()
            node._lifeline.cut()
            node._reserved.release()
        if self.has_zookeeper:
            self.zookeeper.kill()
        self.zookeeper._lifeline.cut()
        self.network.__exit__(None, None, None)
        _remove(self.folder)
        os.close(self._lock)


def _remove(folder: Path) -> None:
    """Remove a cluster's directory, and unmount the disks in it."""
    for disk in folder.glob("*/disk"):
        subprocess.run(["umount", "-l", str(disk)], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


def remove_ownerless() -> None:
    """Remove the directories, disks included, of clusters whose process was killed: nobody holds their lock."""
    for place in (MEMORY_DISK, Path(tempfile.gettempdir())):
        for folder in place.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                lock = os.open(folder / OWNER, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(folder)
                finally:
                    os.close(lock)
