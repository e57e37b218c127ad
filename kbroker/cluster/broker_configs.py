"""A broker's settings as clients see and change them: four layers, the strongest first.

What was set for this broker while it runs, what was set for all brokers while they run, what it was started with, and
the defaults. The settings themselves are given as data: this package sits below the one that knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol

from kbroker.cluster.image import MetadataImage
from kbroker.cluster.topic_configs import broker_synonyms
from kbroker.coordination.paths import DEFAULT_ENTITY
from kbroker.errors import ConfigError
from kbroker.rules.config_values import Kind, Value, format_value


class ConfigSource(IntEnum):
    """Where a value comes from. On the wire. Do not renumber."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_GROUP_CONFIG = 8


class BrokerSetting(Protocol):
    """What must be known of a setting."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def default(self) -> Value | None: ...
    @property
    def doc(self) -> str: ...
    @property
    def dynamic(self) -> bool:
        """Whether it may be changed while the broker runs."""
        ...

    def parse(self, text: str) -> Value:
        """ConfigError for what is no value of it."""
        ...


class Synonym(NamedTuple):
    """A setting that gives a value, or would if those before it did not. A sensitive one's value is None."""

    name: str
    value: str | None
    source: ConfigSource


class BrokerConfigs:
    """One broker's settings. Immutable; the dynamic layers are in the image that each call is given."""

    def __init__(
        self,
        node_id: int,
        settings: Mapping[str, BrokerSetting],
        given: Mapping[str, str],
        check: Callable[[Mapping[str, str]], object] | None = None,
    ):
        """`given`: what it was started with, as text. `check` raises ConfigError for dynamic settings of `settings`
        that contradict the others.
        """
        self.node_id = node_id
        self.settings = settings
        self._given = dict(given)
        defaults = ((name, setting.default) for name, setting in settings.items())
        self._defaults = {name: format_value(default) for name, default in defaults if default is not None}
        self._check = check

    def layers(self, image: MetadataImage) -> tuple[tuple[ConfigSource, Mapping[str, str]], ...]:
        """What each source says, the strongest first."""
        return (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, image.broker_configs.get(str(self.node_id), {})),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, image.broker_configs.get(DEFAULT_ENTITY, {})),
            (ConfigSource.STATIC_BROKER_CONFIG, self._given),
            (ConfigSource.DEFAULT_CONFIG, self._defaults),
        )

    def value(self, name: str, image: MetadataImage) -> str | None:
        """What holds, as text; None for a setting that is unset or unknown."""
        for _, values in self.layers(image):
            if name in values:
                return values[name]
        return None

    def lookup(self, image: MetadataImage) -> Callable[[str], str | None]:
        """`value` for many names of one image."""
        layers = [values for _, values in reversed(self.layers(image))]
        merged: dict[str, str] = {}
        for values in layers:
            merged.update(values)
        return merged.get

    def synonyms(self, name: str, image: MetadataImage, *, sensitive: bool = False) -> list[Synonym]:
        """All that could give the value of setting `name`, in the order in which they count; empty if nothing does.

        Beginning with the setting itself: where only another unit of it was set (log.retention.hours for
        log.retention.ms) Kafka names none, and so do we.
        """
        names = broker_synonyms(name)
        found = [
            Synonym(each, None if sensitive else values[each], source)
            for source, values in self.layers(image)
            for each in names
            if each in values
        ]
        while found and found[0].name != name:
            del found[0]
        return found

    def check_dynamic(self, changes: Mapping[str, str]) -> None:
        """ConfigError, in Kafka's words, unless `changes` may be set while brokers run.

        Names that no setting has are let through, as Kafka does: they may be for something that reads them later.
        """
        known = {name: self.settings[name] for name in changes if name in self.settings}
        fixed = [name for name, setting in known.items() if not setting.dynamic]
        if fixed:
            names = ("Set" if len(fixed) < 5 else "HashSet") + f"({', '.join(fixed)})"
            raise ConfigError(f"Cannot update these configs dynamically: {names}")
        for name, setting in known.items():
            setting.parse(changes[name])
        if self._check is not None:
            self._check({name: changes[name] for name in known})
