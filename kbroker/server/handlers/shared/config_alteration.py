"""Changes configs of topics, brokers, groups and loggers for AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from kbroker._core.server.request import Request
from kbroker.cluster.broker_configs import BrokerConfigs
from kbroker.cluster.broker_loggers import change_loggers, check_logger_changes
from kbroker.cluster.config_changes import (
    Op,
    Wish,
    apply_wishes,
    broker_list_refusal,
    check_wishes,
    list_refusal,
)
from kbroker.cluster.group_configs import GROUP_CONFIGS, validate_group_configs
from kbroker.cluster.image import MetadataImage, Topic
from kbroker.cluster.new_topics import check_configs
from kbroker.cluster.topic_configs import TOPIC_CONFIGS, broker_default
from kbroker.coordination.paths import DEFAULT_ENTITY
from kbroker.errors import ConfigError, ErrorCode, KbrokerError, ProtocolError
from kbroker.rules.config_values import Kind, format_value
from kbroker.server.handlers.shared.changes import log_change, quoted
from kbroker.server.handlers.shared.config_resources import (
    NO_CLIENT_METRICS,
    ResourceType,
    broker_entity,
    broker_number,
    check_topic_name,
)
from kbroker.server.handlers.shared.services import Services

Result = TypeVar("Result")


class Alteration(NamedTuple):
    """The changes that a request asks for on one resource, not checked yet."""

    resource_type: int
    resource_name: str
    wishes: list[Wish]


class Outcome(NamedTuple):
    """The outcome of one alteration; code NONE and no text if it succeeded."""

    resource_type: int
    resource_name: str
    code: ErrorCode
    text: str | None


def alter(
    services: Services,
    request: Request,
    alterations: Sequence[Alteration],
    make_result: Callable[..., Result],
    *,
    types: Collection[ResourceType],
    keeps_others: bool,
    validate_only: bool,
) -> list[Result]:
    """Carry out each alteration, or with `validate_only` only check it. Returns one result for each.

    With `keeps_others`, configs that no wish names keep their values; else they go back to their defaults.
    """
    return [
        make_result(resource_type=kind, resource_name=name, error_code=code, error_message=text)
        for kind, name, code, text in _outcomes(services, request, alterations, types, keeps_others, validate_only)
    ]


def _outcomes(
    services: Services,
    request: Request,
    alterations: Sequence[Alteration],
    types: Collection[ResourceType],
    keeps_others: bool,
    validate_only: bool,
) -> Iterator[Outcome]:
    counts = Counter((each.resource_type, each.resource_name) for each in alterations)
    for each in alterations:
        resource_type, name, wishes = each
        try:
            if counts[resource_type, name] > 1:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if resource_type == ResourceType.CLIENT_METRICS:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, NO_CLIENT_METRICS)
            if resource_type not in types:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
            check_wishes(wishes)
            if resource_type == ResourceType.TOPIC:
                _alter_topic(services, name, wishes, keeps_others, validate_only)
            elif resource_type == ResourceType.BROKER:
                _alter_broker(services, name, wishes, keeps_others, validate_only)
            elif resource_type == ResourceType.GROUP:
                _alter_group(services, name, wishes, keeps_others, validate_only)
            else:
                _alter_loggers(services, name, wishes, validate_only)
            if not validate_only:
                what = f"configs of {_named(resource_type, name)}"
                words = [_worded(wish, services.broker_configs) for wish in wishes]
                log_change(request, f"{what} changed:" if keeps_others else f"{what} replaced by:", words or ["none"])
            yield Outcome(resource_type, name, ErrorCode.NONE, None)
        except KbrokerError as error:
            yield Outcome(resource_type, name, error.code, error.client_message)


def _named(resource_type: int, name: str) -> str:
    """Return the name of a resource for the broker's log."""
    if resource_type == ResourceType.BROKER and not name:
        return "all brokers"
    return f"{ResourceType(resource_type).name.lower()} {quoted(name)}"


def _worded(wish: Wish, broker: BrokerConfigs) -> str:
    """Return a wish as text for the broker's log. The value of a password is hidden."""
    name, operation, value = wish
    what = f"{Op(operation).name.lower()} {quoted(name)}"
    if operation == Op.DELETE:
        return what
    return f"{what}={'[hidden]' if _kind_of(name, broker) is Kind.PASSWORD else quoted(value)}"


class _OnlyValidated(Exception):
    """Raised by a change function to end a validation before anything is written."""


def _alter_topic(
    services: Services, name: str, wishes: Sequence[Wish], keeps_others: bool, validate_only: bool
) -> None:
    if name == "":
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_topic_name(name)
    image, broker = services.cluster.image, services.broker_configs

    def change(topic: Topic) -> Mapping[str, str]:
        changed = apply_wishes(
            topic.configs if keeps_others else {},
            wishes,
            lambda config: TOPIC_CONFIGS[config].kind if config in TOPIC_CONFIGS else None,
            lambda config: format_value(broker_default(TOPIC_CONFIGS[config], broker.lookup(image))),
            list_refusal,
        )
        check_configs(changed)
        if validate_only:
            raise _OnlyValidated
        return changed

    with suppress(_OnlyValidated):
        services.cluster.set_topic_configs(name, change)


def _alter_broker(
    services: Services, name: str, wishes: Sequence[Wish], keeps_others: bool, validate_only: bool
) -> None:
    image, broker = services.cluster.image, services.broker_configs
    entity = broker_entity(name, services.node_id)

    def change(current: Mapping[str, str]) -> Mapping[str, str]:
        changed = apply_wishes(
            current if keeps_others else {},
            wishes,
            lambda config: _kind_of(config, broker),
            lambda config: _inherited(config, entity, broker, image),
            broker_list_refusal,
        )
        try:
            broker.check_dynamic(changed)
        except ConfigError as error:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, str(error)) from None
        if validate_only:
            raise _OnlyValidated
        return changed

    with suppress(_OnlyValidated):
        services.cluster.set_broker_configs(entity, change)


def _alter_group(
    services: Services, name: str, wishes: Sequence[Wish], keeps_others: bool, validate_only: bool
) -> None:
    if name == "":
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    lookup = services.broker_configs.lookup(services.cluster.image)

    def change(current: Mapping[str, str]) -> Mapping[str, str]:
        changed = apply_wishes(
            current if keeps_others else {},
            wishes,
            lambda config: GROUP_CONFIGS[config].kind if config in GROUP_CONFIGS else None,
            lambda config: "",
            list_refusal,
        )
        try:
            validate_group_configs(changed, lookup)
        except ConfigError as error:
            raise ProtocolError(ErrorCode.INVALID_CONFIG, str(error)) from None
        if validate_only:
            raise _OnlyValidated
        return changed

    with suppress(_OnlyValidated):
        services.cluster.set_group_configs(name, change)


def _kind_of(config: str, broker: BrokerConfigs) -> Kind | None:
    setting = broker.settings.get(config)
    return None if setting is None else setting.kind


def _inherited(config: str, entity: str, broker: BrokerConfigs, image: MetadataImage) -> str:
    """The value that a list config has for the entity before its first dynamic change: that of the layers below."""
    below = broker.layers(image)[1:] if entity != DEFAULT_ENTITY else broker.layers(image)[2:]
    return next((values[config] for _, values in below if config in values), "")


def _alter_loggers(services: Services, name: str, wishes: list[Wish], validate_only: bool) -> None:
    number = broker_number(name, "Node")
    if number != services.node_id:
        raise ProtocolError(
            ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {services.node_id}, but received {number}"
        )
    check_logger_changes(wishes)
    if not validate_only:
        change_loggers(wishes)
