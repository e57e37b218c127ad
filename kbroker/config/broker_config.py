"""All settings of one broker as an immutable object, from defaults, server.properties, environment and command line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.config.definitions import ALIASES, SETTINGS
from kbroker.config.listeners import (
    SERVED_PROTOCOLS,
    WILDCARD_HOSTS,
    parse_address,
    parse_listeners,
    parse_protocol_map,
)
from kbroker.config.not_read import NOT_READ
from kbroker.config.properties import read_properties
from kbroker.config.setting import HOUR_MS, Setting
from kbroker.errors import ConfigError
from kbroker.model import Endpoint, bracketed
from kbroker.rules.config_values import Value, format_value
from kbroker.rules.nearest import nearest

ENVIRONMENT_PREFIX = "KBROKER_"
# Environment variables that the build, the tests and the client commands read; they are no settings of the broker.
OTHER_ENVIRONMENT = frozenset({"KBROKER_BUILD", "KBROKER_BUILD_JOBS", "KBROKER_BOOTSTRAP_SERVERS"})
_OF_ONE_LISTENER = re.compile(r"listener\.name\.[^.]+\..+")
STAND_INS = frozenset({"log.retention.minutes", "log.retention.hours", "log.roll.hours", "log.roll.jitter.hours"})
"""Settings that stand in for a dynamic one in milliseconds that is not given. They can be read again like that one."""


class Given(NamedTuple):
    """A setting as it was given. `origin` says where: "server.properties:12", "--override", ..."""

    name: str
    text: str
    origin: str


class Notice(NamedTuple):
    """A remark about the given settings, to be logged once. `unknown`: a name is unknown, an error with `--strict`."""

    text: str
    unknown: bool = False


class BrokerConfig(Mapping[str, Any]):
    """The broker's settings. `config["log.segment.bytes"]` is the typed value of any setting of `SETTINGS`.

    The values are the effective ones: log.retention.ms, log.roll.ms, log.roll.jitter.ms, log.flush.interval.ms,
    log.dirs and broker.id include the settings that stand in for them, such as log.retention.hours. `given` has the
    settings as they were given.
    """

    def __init__(
        self,
        values_by_name: Mapping[str, Value | None],
        given: Mapping[str, Given],
        notices: tuple[Notice, ...],
        *,
        listeners: tuple[Endpoint, ...],
        advertised_listeners: tuple[Endpoint, ...],
        inter_broker_listener: str,
        control_plane_listener: str,
        log_dirs: tuple[Path, ...],
        http_address: tuple[str, int] | None,
    ):
        self.values_by_name = values_by_name
        self.given = given
        self.notices = notices
        self.listeners = listeners
        self.advertised_listeners = advertised_listeners
        """The advertised listeners that were set. Other listeners advertise the address that a client connected to."""
        self.inter_broker_listener = inter_broker_listener
        self.control_plane_listener = control_plane_listener
        """The listener for requests of the controller; "" if it is the inter-broker listener."""
        self.log_dirs = log_dirs
        self.http_address = http_address

    @property
    def node_id(self) -> int:
        """The broker's id; -1: that in the data directory's meta.properties, else `definitions.DEFAULT_NODE_ID`."""
        value = self.values_by_name["broker.id"]
        assert isinstance(value, int)
        return value

    @property
    def zookeeper(self) -> str | None:
        """The address of the ZooKeeper whose cluster this broker is a member of; None if it is alone."""
        return self["zookeeper.connect"] if self["enable.zookeeper"] and self["zookeeper.connect"] else None

    def __getitem__(self, name: str) -> Any:
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def text(self, name: str) -> str | None:
        """Return a setting as it was given, else its default, as text; None if it is unset or unknown.

        This is not the effective value.
        """
        given, setting = self.given.get(name), SETTINGS.get(name)
        if given is not None:
            return given.text.strip()
        return None if setting is None or setting.default is None else format_value(setting.default)

    def with_dynamic(self, changes: Mapping[str, str]) -> BrokerConfig:
        """Return these settings with `changes`, names and texts as in AlterConfigs, on top.

        Raises ConfigError if a name is unknown or not dynamic, or if the settings are wrong then.
        """
        for name in changes:
            setting = SETTINGS.get(name)
            if setting is None:
                raise ConfigError(f"{name}: {_unknown(name)}")
            if not setting.dynamic:
                raise ConfigError(f"{name}: cannot be changed while the broker runs")
        given = {**self.given, **{name: Given(name, text, "dynamic") for name, text in changes.items()}}
        return _build(given, list(self.notices), [])

    def read_again(self, fresh: BrokerConfig) -> Reading:
        """Return the settings of a running broker after the given settings were read again as `fresh`.

        Changed settings that are not dynamic keep their values until a restart. Raises ConfigError.
        """
        given = dict(self.given)
        taken: list[str] = []
        waiting: list[str] = []
        for name in dict.fromkeys((*self.given, *fresh.given)):
            setting, new = SETTINGS[name], fresh.given.get(name)
            if _parse(setting, self.given.get(name)) == _parse(setting, new):
                continue
            if not setting.dynamic and name not in STAND_INS:
                waiting.append(name)
                continue
            taken.append(f"{name}={_shown(setting, fresh.text(name) or '')}")
            given.pop(name, None)
            if new is not None:
                given[name] = new
        return Reading(_build(given, list(fresh.notices), []), taken, waiting)


class Reading(NamedTuple):
    """The result of reading the settings again while the broker runs."""

    config: BrokerConfig
    taken: list[str]
    """NAME=VALUE of each changed setting that is in force now."""
    waiting: list[str]
    """The name of each changed setting that is in force after a restart only."""


def load_config(
    path: str | Path | None = None,
    overrides: Sequence[str] = (),
    data_directory: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """Return the settings for a start of the broker.

    Later sources win over earlier ones: defaults, file, environment, overrides, `--data`. `overrides` are `name=value`.
    `environment` is the process's unless given. Raises ConfigError, which names each wrong setting, where it was given
    and what is allowed. Unknown names become notices, and are named in such an error; the caller may refuse them with
    `refuse_unknown`.
    """
    found: list[Given] = []
    wrong: list[str] = []
    if path is not None:
        shown = Path(path).name
        found += [Given(name, value, f"{shown}:{line}") for name, value, line in read_properties(path)]
    found += _of_environment(os.environ if environment is None else environment)
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals or not name.strip():
            wrong.append(f"--override {override}: not NAME=VALUE")
            continue
        found.append(Given(name.strip(), value, "--override"))
    if data_directory is not None:
        found.append(Given("log.dirs", str(data_directory), "--data"))
    return config_of(found, wrong)


def config_of(found: Iterable[Given], wrong: Sequence[str] = ()) -> BrokerConfig:
    """Return the settings from `found`. A later item replaces an earlier one of the same setting, old names included.

    Raises ConfigError with `wrong`, the errors that are known already, and every other error.
    """
    wrong = list(wrong)
    given: dict[str, Given] = {}
    notices: list[Notice] = []
    not_read: dict[str, list[str]] = {}
    for item in found:
        if item.name in SETTINGS:
            _enter(given, item, notices)
        elif item.name in ALIASES:
            _enter(given, _renamed(item, notices), notices)
        elif item.name in NOT_READ:
            not_read.setdefault(NOT_READ[item.name], []).append(item.name)
        elif _OF_ONE_LISTENER.fullmatch(item.name):
            not_read.setdefault("not yet: settings of single listeners", []).append(item.name)
        else:
            notices.append(Notice(f"{item.origin}: {item.name}: {_unknown(item.name)}", unknown=True))
        if item.name == "authorizer.class.name" and item.text.strip():
            wrong.append(f"{item.origin}: {item.name}: kbroker does not check access yet; remove it to start without")
    for reason, names in not_read.items():
        notices.append(Notice(f"not used: {', '.join(dict.fromkeys(names))} ({reason})"))
    return _build(given, notices, wrong)


def refuse_unknown(config: BrokerConfig) -> None:
    """Refuse unknown settings (`--strict`). Raises ConfigError, which names each."""
    _refuse(_unknown_of(config.notices))


def _unknown_of(notices: Iterable[Notice]) -> list[str]:
    return [notice.text for notice in notices if notice.unknown]


def _refuse(wrong: Sequence[str]) -> None:
    """Raise ConfigError with a line for each error in `wrong`; no-op if there is none."""
    if len(wrong) > 1:
        raise ConfigError("\n  ".join((f"{len(wrong)} settings are wrong:", *wrong)))
    if wrong:
        raise ConfigError(wrong[0])


@contextmanager
def _gathered(wrong: list[str]) -> Iterator[None]:
    """A context manager that collects a ConfigError of its block in `wrong`, so that later errors are found too."""
    try:
        yield
    except ConfigError as error:
        wrong.append(str(error))


def environment_name(name: str) -> str:
    """Return the environment variable for the setting `name`: log.segment.bytes -> KBROKER_LOG_SEGMENT_BYTES."""
    return ENVIRONMENT_PREFIX + name.removeprefix("kbroker.").replace(".", "_").replace("-", "_").upper()


def _of_environment(environment: Mapping[str, str]) -> list[Given]:
    found = []
    names: dict[str, str] = {}
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in OTHER_ENVIRONMENT:
            continue
        names = names or {environment_name(name): name for name in (*NOT_READ, *ALIASES, *SETTINGS)}
        name = names.get(variable)
        found.append(
            Given(
                name or variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "."),
                environment[variable],
                f"environment variable {variable}",
            )
        )
    return found


def _enter(given: dict[str, Given], item: Given, notices: list[Notice]) -> None:
    earlier = given.get(item.name)
    if earlier is not None and earlier.origin.rpartition(":")[0] == item.origin.rpartition(":")[0] != "":
        notices.append(Notice(f"{item.origin}: {item.name} is there twice; {earlier.origin} is not used"))
    given[item.name] = item


def _renamed(item: Given, notices: list[Notice]) -> Given:
    setting, factor = ALIASES[item.name]
    notices.append(Notice(f"{item.origin}: {item.name} is an old name of {setting.name}"))
    text = item.text.strip()
    if factor != 1 and text.isascii() and text.isdigit() and len(text) < 10:
        text = str(int(text) * factor)
    return Given(setting.name, text, item.origin)


def _unknown(name: str) -> str:
    like = nearest(name, (*SETTINGS, *ALIASES, *NOT_READ))
    return f"unknown setting; did you mean {like}?" if like else "unknown setting"


def _parse(setting: Setting, given: Given | None) -> Value | None:
    if given is None or (not given.text.strip() and setting.default is None):
        return setting.default
    try:
        return setting.parse(given.text)
    except ConfigError:
        shown = _shown(setting, given.text.strip()[:80])
        raise ConfigError(f"{given.origin}: {setting.name}={shown}: must be {setting.allowed()}") from None


def _shown(setting: Setting, text: str) -> str:
    """Return a setting's `text` for logs and errors, which others may read: a password is replaced by a word."""
    return "[hidden]" if setting.sensitive else text


def _build(given: dict[str, Given], notices: list[Notice], wrong: list[str]) -> BrokerConfig:
    """Return the settings. Raises ConfigError with `wrong` and every other error."""
    values: dict[str, Value | None] = {name: setting.default for name, setting in SETTINGS.items()}
    readable = dict(given)
    for name, item in given.items():
        try:
            values[name] = _parse(SETTINGS[name], item)
        except ConfigError as error:
            wrong.append(str(error))
            del readable[name]
    with _gathered(wrong):
        _settle_node_id(values, readable)
    _settle_log_times(values)
    values["log.dirs"] = values["log.dirs"] or values["log.dir"]
    directories = _split(values["log.dirs"])
    if len(set(directories)) != len(directories):
        wrong.append(f"{_origin(given, 'log.dirs')}log.dirs={values['log.dirs']}: a directory is there twice")
    _check_pairs(values, readable, given.keys() - readable.keys(), wrong)
    protocols = values["group.coordinator.rebalance.protocols"]
    assert isinstance(protocols, tuple)
    if "classic" not in protocols:
        wrong.append(
            f"{_origin(given, 'group.coordinator.rebalance.protocols')}group.coordinator.rebalance.protocols="
            f"{','.join(protocols)}: classic cannot be left out, as in Kafka"
        )
    listeners: tuple[Endpoint, ...] = ()
    advertised: tuple[Endpoint, ...] = ()
    inter_broker = control_plane = ""
    with _gathered(wrong):
        listeners, advertised, inter_broker = _settle_listeners(values, readable, notices)
        control_plane = _control_plane_listener(values, readable, listeners, inter_broker)
    address = values["kbroker.http.address"]
    assert isinstance(address, str)
    http_address = None
    if address:
        with _gathered(wrong):
            http_address = parse_address(f"{_origin(given, 'kbroker.http.address')}kbroker.http.address", address)
    if wrong:
        _refuse([*wrong, *_unknown_of(notices)])
    return BrokerConfig(
        values_by_name=values,
        given=given,
        notices=tuple(notices),
        listeners=listeners,
        advertised_listeners=advertised,
        inter_broker_listener=inter_broker,
        control_plane_listener=control_plane,
        log_dirs=tuple(Path(directory).expanduser() for directory in directories),
        http_address=http_address,
    )


def _origin(given: Mapping[str, Given], name: str) -> str:
    """Return where a setting was given, as the prefix of an error; empty if it was not given."""
    return f"{given[name].origin}: " if name in given else ""


def _settle_node_id(values: dict[str, Value | None], given: Mapping[str, Given]) -> None:
    if "node.id" in given and "broker.id" in given and values["node.id"] != values["broker.id"]:
        raise ConfigError(
            f"{_origin(given, 'node.id')}node.id={values['node.id']} and broker.id={values['broker.id']} differ; give "
            "one of them"
        )
    number = values["node.id"] if "node.id" in given else values["broker.id"]
    values["node.id"] = values["broker.id"] = number


def _settle_log_times(values: dict[str, Value | None]) -> None:
    def first(*choices: tuple[str, int]) -> int:
        for name, factor in choices:
            value = values[name]
            if value is not None:
                assert isinstance(value, int)
                return value * factor if value > 0 else value
        raise AssertionError(choices)

    values["log.retention.ms"] = first(
        ("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", HOUR_MS)
    )
    values["log.roll.ms"] = first(("log.roll.ms", 1), ("log.roll.hours", HOUR_MS))
    values["log.roll.jitter.ms"] = first(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR_MS))
    values["log.flush.interval.ms"] = first(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1))


def _check_pairs(
    values: Mapping[str, Value | None], given: Mapping[str, Given], unread: Set[str], wrong: list[str]
) -> None:
    """Check the settings that must not be larger than another one, if both could be read."""
    for small, large in (
        ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
        ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
        ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
        ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
        ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
        ("group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms"),
        ("group.consumer.min.assignment.interval.ms", "group.consumer.assignment.interval.ms"),
        ("group.consumer.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"),
        ("log.roll.jitter.ms", "log.roll.ms"),
        ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    ):
        low, high = values[small], values[large]
        assert isinstance(low, int) and isinstance(high, int)
        if low > high and not unread & {small, large}:
            origin = _origin(given, small) or _origin(given, large)
            wrong.append(f"{origin}{small}={low} is larger than {large}={high}")


def _settle_listeners(
    values: dict[str, Value | None], given: Mapping[str, Given], notices: list[Notice]
) -> tuple[tuple[Endpoint, ...], tuple[Endpoint, ...], str]:
    def placed(name: str, error: ConfigError) -> ConfigError:
        return ConfigError(f"{_origin(given, name)}{error}")

    text = values["listeners"]
    if "listeners" not in given and (values["port"] is not None or values["host.name"] is not None):
        host, port = values["host.name"], values["port"]
        text = f"PLAINTEXT://{bracketed(str(host or ''))}:{9092 if port is None else port}"
        values["listeners"] = text
    told = values["advertised.listeners"]
    assert isinstance(text, str)
    try:
        protocols = parse_protocol_map(_split(values["listener.security.protocol.map"]))
    except ConfigError as error:
        raise placed("listener.security.protocol.map", error) from None
    # As in Kafka, the listener of a KRaft controller needs no entry in the map.
    controller_names = {name.upper() for name in _split(values["controller.listener.names"])}
    for name in controller_names:
        protocols.setdefault(name, "PLAINTEXT")
    try:
        everything = parse_listeners("listeners", text, protocols)
    except ConfigError as error:
        raise placed("listeners", error) from None
    listeners = tuple(endpoint for endpoint in everything if endpoint.listener not in controller_names)
    if not listeners:
        raise placed("listeners", ConfigError(f"listeners={text}: no listener for clients"))
    for endpoint in everything:
        if endpoint not in listeners:
            notices.append(Notice(f"listener {endpoint} is not opened: there is no KRaft controller"))
        elif endpoint.security_protocol not in SERVED_PROTOCOLS:
            raise placed(
                "listeners",
                ConfigError(
                    f"listeners={text}: {endpoint.listener} wants {endpoint.security_protocol}, which is not served yet"
                ),
            )
    if told is None and (values["advertised.host.name"] is not None or values["advertised.port"] is not None):
        first = listeners[0]
        host = values["advertised.host.name"] or first.host
        port = values["advertised.port"] if values["advertised.port"] is not None else first.port
        told = f"{first.listener}://{bracketed(str(host))}:{port}"
        values["advertised.listeners"] = told
    try:
        advertised = _advertised(str(told or ""), protocols, controller_names, listeners)
    except ConfigError as error:
        raise placed("advertised.listeners", error) from None
    try:
        return listeners, advertised, _inter_broker_listener(values, listeners)
    except ConfigError as error:
        raise placed("inter.broker.listener.name", error) from None


def _advertised(
    text: str, protocols: Mapping[str, str], controller_names: set[str], listeners: Sequence[Endpoint]
) -> tuple[Endpoint, ...]:
    endpoints = parse_listeners("advertised.listeners", text, protocols)
    names = {endpoint.listener for endpoint in listeners}
    for endpoint in endpoints:
        if endpoint.listener not in names | controller_names:
            raise ConfigError(f"advertised.listeners={text}: {endpoint.listener} is not among listeners")
        if endpoint.host in WILDCARD_HOSTS:
            raise ConfigError(
                f"advertised.listeners={text}: clients cannot connect to {endpoint.host or 'an empty host'!r}"
            )
    return tuple(endpoint for endpoint in endpoints if endpoint.listener not in controller_names)


def _inter_broker_listener(values: Mapping[str, Value | None], listeners: Sequence[Endpoint]) -> str:
    wanted = values["inter.broker.listener.name"]
    if wanted is not None:
        name = str(wanted).upper()
        if name not in {endpoint.listener for endpoint in listeners}:
            raise ConfigError(f"inter.broker.listener.name={wanted}: not among listeners")
        return name
    protocol = values["security.inter.broker.protocol"]
    return next((e.listener for e in listeners if e.security_protocol == protocol), listeners[0].listener)


def _control_plane_listener(
    values: Mapping[str, Value | None], given: Mapping[str, Given], listeners: Sequence[Endpoint], inter_broker: str
) -> str:
    wanted = values["control.plane.listener.name"]
    if wanted is None:
        return ""
    name = str(wanted).upper()
    where = f"{_origin(given, 'control.plane.listener.name')}control.plane.listener.name={wanted}"
    if name not in {endpoint.listener for endpoint in listeners}:
        raise ConfigError(f"{where}: not among listeners")
    if name == inter_broker:
        raise ConfigError(f"{where}: it is the inter-broker listener too; leave it out, or name another one")
    return name


def _split(value: Value | None) -> list[str]:
    return [part for part in (piece.strip() for piece in str(value or "").split(",")) if part]
