"""A broker's settings as clients see and change them, in four layers.

The strongest layer first: dynamic settings of this broker, dynamic settings of all brokers, the settings that the
broker was started with, and the defaults. The table of settings is passed in as data: `kbroker.config`, which has it,
is above this package.
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
    """The source of a config's value. On the wire. Do not renumber."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_GROUP_CONFIG = 8


class BrokerSetting(Protocol):
    """The description of a setting that this module needs."""

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
        """The value that `text` stands for. Raises ConfigError if the setting may not have it."""
        ...


class Synonym(NamedTuple):
    """A setting that gives a config's value, or would give it if the synonyms before it were unset.

    `value` None: the value is hidden.
    """

    name: str
    value: str | None
    source: ConfigSource


class BrokerConfigs:
    """One broker's settings. Immutable: the dynamic layers are in the metadata image that is passed to each call."""

    def __init__(
        self,
        node_id: int,
        settings: Mapping[str, BrokerSetting],
        given: Mapping[str, str],
        check: Callable[[Mapping[str, str]], object] | None = None,
    ):
        """`given` are the settings that the broker was started with, as text.

        `check` raises ConfigError if the dynamic settings passed to it contradict the others.
        """
        self.node_id = node_id
        self.settings = settings
        self._given = dict(given)
        defaults = ((name, setting.default) for name, setting in settings.items())
        self._defaults = {name: format_value(default) for name, default in defaults if default is not None}
        self._check = check

    def layers(self, image: MetadataImage) -> tuple[tuple[ConfigSource, Mapping[str, str]], ...]:
        """The settings of each layer, as text by name, the strongest layer first."""
        return (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, image.broker_configs.get(str(self.node_id), {})),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, image.broker_configs.get(DEFAULT_ENTITY, {})),
            (ConfigSource.STATIC_BROKER_CONFIG, self._given),
            (ConfigSource.DEFAULT_CONFIG, self._defaults),
        )

    def value(self, name: str, image: MetadataImage) -> str | None:
        """The effective value of a setting, as text; None if it is unset or unknown."""
        for _, values in self.layers(image):
            if name in values:
                return values[name]
        return None

    def lookup(self, image: MetadataImage) -> Callable[[str], str | None]:
        """A function like `value` for one image, faster for many names."""
        layers = [values for _, values in reversed(self.layers(image))]
        merged: dict[str, str] = {}
        for values in layers:
            merged.update(values)
        return merged.get

    def synonyms(self, name: str, image: MetadataImage, *, sensitive: bool = False) -> list[Synonym]:
        """The synonyms that could give the value of setting `name`, the strongest first.

        The first is a value of `name` itself: stronger synonyms in other units (log.retention.hours for
        log.retention.ms) are left out, as in Kafka. So the list is empty if only those are set.
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
        """Check that `changes` may be set while the broker runs. Raises ConfigError, in Kafka's words, if not.

        Unknown names are accepted, as in Kafka: another component or release may read them later.
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
