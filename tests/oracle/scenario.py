"""Scenarios: scripts that ask a broker and are told what it answers; each is run at every version of its API.

    @scenario(ApiKey.DELETE_TOPICS)
    def topics_that_are_not_there(t: Talk) -> None:
        t.ask(delete_topics(t.version, t.name("nowhere")))

`t.ask` asks and remembers the answer for the comparison; `t.do` asks for what the scenario only needs, at that API's
highest version, and fails the scenario when it is refused. Names come from `t.name`: they are the same on both
brokers and nobody else's. A scenario may not look at what differs between brokers (ids, times, ports).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kbroker.errors import ErrorCode, KbrokerError
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.protocol.headers import decode_response, framed
from kbroker.protocol.messages import Message, RequestHeader, Struct
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.models.message import fields_of
from tests.oracle.answers import Names, Tree, tree_of

SCENARIOS: dict[str, Scenario] = {}
"""Scenarios about versions that Kafka 3.9 has."""
NEWER: dict[str, Scenario] = {}
"""Scenarios about versions that only Kafka 4.3 has; each asks with the versions that it is about."""
HIGHEST = {
    ApiKey.PRODUCE: 11,
    ApiKey.END_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.LIST_CONFIG_RESOURCES: 0,
}
"""The last version in Kafka 3.9 of the APIs of which kbroker serves a later one."""
KEYS = {f"{key.label}Request": key for key in ApiKey}
# Kafka without ZooKeeper has no place for the offsets of version 0, and refuses them: `test_znodes.py` compares them.
FIRST_IN_KRAFT = {ApiKey.OFFSET_COMMIT: 1, ApiKey.OFFSET_FETCH: 1}
TIMEOUT_S = 30.0
RUN = secrets.token_hex(2)
"""A part of every name, so that brokers that keep running between runs can be asked again."""


@dataclass(frozen=True)
class Scenario:
    """One script. `id` is `api.function`."""

    id: str
    api: ApiKey
    run: Callable[[Talk], None]
    versions: range
    alone: bool
    """The scenario changes what belongs to the whole broker: nothing else may run beside it.

    Deleting a topic is of that kind: both brokers then forget every group that has neither members nor offsets.
    """

    @property
    def is_about_versions(self) -> bool:
        return len(self.versions) > 1


def scenario(
    api: ApiKey, since: int | None = None, until: int | None = None, only: int | None = None, alone: bool = False
) -> Callable[[Callable[[Talk], None]], Callable[[Talk], None]]:
    """Register a script for the served versions of an API from `since` to `until`."""
    served = SERVED[api]
    first = max(served.min, FIRST_IN_KRAFT.get(api, 0)) if since is None else since
    last = highest(api) if until is None else until
    versions = range(first, last + 1) if only is None else range(only, only + 1)

    def register(run: Callable[[Talk], None]) -> Callable[[Talk], None]:
        made = Scenario(f"{api.name.lower()}.{run.__name__}", api, run, versions, alone)
        assert made.id not in SCENARIOS, made.id
        SCENARIOS[made.id] = made
        return run

    return register


def newer_scenario(api: ApiKey, alone: bool = False) -> Callable[[Callable[[Talk], None]], Callable[[Talk], None]]:
    """Register a script that Kafka 4.3 is to answer, about the highest served version of an API."""

    def register(run: Callable[[Talk], None]) -> Callable[[Talk], None]:
        version = SERVED[api].max
        made = Scenario(f"{api.name.lower()}.{run.__name__}", api, run, range(version, version + 1), alone)
        assert made.id not in NEWER, made.id
        NEWER[made.id] = made
        return run

    return register


def highest(api: ApiKey) -> int:
    """Return the last version that both brokers serve."""
    return HIGHEST.get(api, SERVED[api].max)


class Stopped(Exception):
    """The scenario cannot go on: a request that it needs was refused or the connection is gone."""


class Closed:
    """Stands for a response: the broker closed the connection instead."""

    def __getattr__(self, name: str) -> Any:
        raise Stopped(f"the connection was closed, {name} is not known")


@dataclass
class Step:
    """One answer. `seen` is the tree that is compared; `words` has the texts too; `api` is empty for a note."""

    label: str
    seen: Tree
    api: str = ""
    words: Tree = None


@dataclass
class Sent:
    """A request that is not answered yet."""

    api: ApiKey
    version: int
    correlation_id: int
    client: WireClient
    label: str
    at: float


class Talk:
    """One run of a scenario: its version, its broker, and the answers."""

    def __init__(self, scenario: Scenario, version: int, host: str, port: int, attempt: str = ""):
        self.scenario = scenario
        self.version = version
        self.host, self.port = host, port
        self.names = Names(port)
        self.steps: list[Step] = []
        self.clients: dict[str, WireClient] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.prefix = f"{scenario.id.replace('.', '-')}-{version}-{RUN}{attempt}"

    # --- names and what is made for the scenario ------------------------------------------------------------------
    def name(self, word: str) -> str:
        return f"{self.prefix}-{word}"

    def topic(self, word: str = "t", partitions: int = 1, **configs: object) -> str:
        """Make a topic. The names of configs have _ instead of dots."""
        name = self.name(word)
        config = M.CreateTopicsRequest.CreatableTopicConfig
        wanted = M.CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[config(name=key.replace("_", "."), value=str(value)) for key, value in configs.items()],
        )
        (made,) = self.do(M.CreateTopicsRequest(topics=[wanted], timeout_ms=30000)).topics
        self.must(made.error_code, f"creating {name}: {made.error_message}")
        again = " again" if name in self.topic_ids else ""
        self.topic_ids[name] = made.topic_id
        self.names.learn("topic id", made.topic_id, f"of {name}{again}")
        self.await_leaders(name, partitions)
        return name

    def await_leaders(self, name: str, partitions: int) -> None:
        """Wait for leaders: KRaft answers, and shows the topic, before the broker has become the leader."""
        one = M.ListOffsetsRequest.ListOffsetsPartition
        wanted = [one(partition_index=index, timestamp=-1) for index in range(partitions)]
        asked = M.ListOffsetsRequest(
            replica_id=-1, topics=[M.ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=wanted)]
        )
        self.until(
            lambda: all(found.error_code == 0 for found in self.do(asked).topics[0].partitions), f"leaders of {name}"
        )

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Ask, without comparing, until the condition holds: Kafka does some things after it has answered."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_so():
            if time.monotonic() > deadline:
                raise Stopped(f"no {what}")
            time.sleep(0.002)

    def produce(self, topic: str, *batches: bytes, partition: int = 0, acks: int = -1) -> int:
        """Append batches, one request each; return the last base offset."""
        base_offset = -1
        for batch in batches:
            data = M.ProduceRequest.PartitionProduceData(index=partition, records=batch)
            request = M.ProduceRequest(
                acks=acks,
                timeout_ms=30000,
                topic_data=[M.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
            )
            (answer,) = self.do(request).responses[0].partition_responses
            self.must(answer.error_code, f"producing to {topic}: {answer.error_message}")
            base_offset = answer.base_offset
        return base_offset

    def must(self, error_code: int, what: str) -> None:
        if error_code:
            raise Stopped(f"{what}: {ErrorCode(error_code).name}")

    # --- asking ---------------------------------------------------------------------------------------------------
    def client(self, on: str) -> WireClient:
        """Return the connection of that name; make it if it is new or was closed."""
        if on not in self.clients:
            self.clients[on] = WireClient(self.host, self.port, client_id=on, timeout_s=TIMEOUT_S)
        return self.clients[on]

    def drop(self, on: str) -> None:
        """Close a connection."""
        if on in self.clients:
            self.clients.pop(on).close()

    def do(self, message: Message, version: int | None = None, on: str = "setup") -> Any:
        """Ask for what the scenario needs; the answer is not compared."""
        api = KEYS[type(message).__name__]
        version = highest(api) if version is None else version
        return self.client(on).call(api, version, lower(message, version))

    def ask(
        self,
        message: Message,
        version: int | None = None,
        on: str = "wire",
        keep: Callable[[Any], None] | None = None,
        after_ms: int | None = None,
    ) -> Any:
        """Ask, and keep the answer for the comparison.

        `keep` may remove from the answer what belongs to other scenarios. `after_ms`: compare, too, whether the answer
        took at least that long.
        """
        return self.receive(self.send(message, version, on), keep, after_ms)

    def send(self, message: Message, version: int | None = None, on: str = "wire") -> Sent:
        """Send a request without waiting for the answer."""
        api = KEYS[type(message).__name__]
        if version is None:
            version = self.version if api == self.scenario.api else highest(api)
        client = self.client(on)
        label = f"{len(self.steps)} {api.label}"
        at = time.monotonic()  # before: the answer may be under way when this thread goes on
        try:
            return Sent(api, version, client.send(api, version, lower(message, version)), client, label, at)
        except ConnectionClosed:
            return Sent(api, version, -1, client, label, at)

    def receive(self, sent: Sent, keep: Callable[[Any], None] | None = None, after_ms: int | None = None) -> Any:
        """Wait for the answer to a request that was sent, and keep it for the comparison."""
        try:
            response = sent.client.receive(sent.api, sent.version, sent.correlation_id)
        except ConnectionClosed:
            return self._closed(sent)
        if keep is not None:
            keep(response)
        step = Step(sent.label, tree_of(response, sent.version, self.names), sent.api.label)
        step.words = tree_of(response, sent.version, self.names, words=True)
        if after_ms is not None:
            step.seen = {"took": (time.monotonic() - sent.at) * 1000 >= after_ms * 0.9, **step.seen}
        self.steps.append(step)
        return response

    def still_waits(self, sent: Sent, for_ms: int = 1000) -> None:
        """Keep for the comparison whether there is no answer for that long."""
        sent.client.socket.settimeout(for_ms / 1000)
        try:
            waits = not sent.client.socket.recv(1, 2)  # MSG_PEEK
        except TimeoutError:
            waits = True
        finally:
            sent.client.socket.settimeout(TIMEOUT_S)
        self.note(f"{sent.label} still waits", waits)

    def ask_bytes(
        self,
        api_key: int,
        version: int,
        body: bytes,
        on: str = "wire",
        flexible: bool = False,
        keep: Callable[[Any], None] | None = None,
    ) -> Any:
        """Send a request given by its bytes behind the header. Its answer is read in that version, or in version 0."""
        label = f"{len(self.steps)} key {api_key}"
        header_version = 2 if flexible else 1
        header = RequestHeader(request_api_key=api_key, request_api_version=version, correlation_id=77, client_id=on)
        client = self.client(on)
        sent = Sent(ApiKey(api_key) if api_key in list(ApiKey) else ApiKey.PRODUCE, version, 77, client, label, 0)
        try:
            client.send_raw(framed(header.encode(header_version) + body))
            frame = client.read_frame()
        except ConnectionClosed:
            return self._closed(sent)
        for read_as in (version, 0):
            try:
                response = decode_response(sent.api, read_as, frame)[1]
            except KbrokerError:
                continue
            if keep is not None:
                keep(response)
            seen = tree_of(response, read_as, self.names)
            self.steps.append(Step(f"{label}, answered as v{read_as}", seen, sent.api.label))
            return response
        self.note(label, frame.hex())
        return frame

    def ask_raw(self, frame: bytes, on: str = "wire") -> None:
        """Send a whole frame as it is. Both brokers are expected to close the connection without an answer."""
        client = self.client(on)
        label = f"{len(self.steps)} raw"
        sent = Sent(ApiKey.API_VERSIONS, 0, 0, client, label, 0)
        try:
            client.send_raw(frame)
            self.note(label, client.read_frame().hex())
        except ConnectionClosed:
            self._closed(sent)

    def note(self, label: str, value: Tree) -> None:
        """Keep another value for the comparison."""
        self.steps.append(Step(f"{len(self.steps)} {label}" if not label[0].isdigit() else label, value))

    def _closed(self, sent: Sent) -> Closed:
        for name, client in list(self.clients.items()):
            if client is sent.client:
                self.drop(name)
        self.steps.append(Step(sent.label, "<closed>"))
        return Closed()

    def close(self) -> None:
        for on in list(self.clients):
            self.drop(on)


@dataclass
class Run:
    """The result of a scenario on one broker."""

    steps: list[Step]
    stopped: BaseException | None = None


def run(scenario: Scenario, version: int, host: str, port: int, attempt: str = "") -> Run:
    """Run a scenario at a version against a broker; never raises. A second attempt uses other names."""
    talk = Talk(scenario, version, host, port, attempt)
    stopped: BaseException | None = None
    try:
        scenario.run(talk)
    except Exception as error:
        stopped = error
        talk.note("stopped", f"{type(error).__name__}: {error}")
    finally:
        talk.close()
    return Run(talk.steps, stopped)


def lower(message: Any, version: int) -> Any:
    """Return the message with only the fields that a version has, so that one script serves all versions."""
    return _lower(message, type(message), None, version)


def _lower(value: Struct, cls: type[Message], struct: str | None, version: int) -> Struct:
    kept: dict[str, Any] = {}
    for one in fields_of(cls, struct):
        if not one.exists(version):
            continue
        held = getattr(value, one.name)
        if held is None or not one.is_struct:
            kept[one.name] = held
        elif one.is_array:
            kept[one.name] = [_lower(element, cls, one.element, version) for element in held]
        else:
            kept[one.name] = _lower(held, cls, one.element, version)
    return type(value)(**kept)


def codes_in(tree: Tree) -> Iterable[str]:
    """Return every error code in an answer."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key.endswith("error_code"):
                yield value
            else:
                yield from codes_in(value)
