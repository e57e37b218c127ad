"""Translates `kafka.*` options, which are named as in Kafka's Java clients, into options of our client.

Files that options name are read where a client is made, as in Java: on the driver, and on each executor's machine.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kbroker.client.config.consumer import CONSUMER
from kbroker.client.config.network import NETWORK
from kbroker.client.config.option import Option
from kbroker.client.config.producer import PRODUCER
from kbroker.client.security import jaas, java_stores
from kbroker.errors import KbrokerError
from kbroker.rules.nearest import nearest
from kbroker.spark.errors import WrongOption

log = logging.getLogger("kbroker.spark")

SERVERS, PROTOCOL, MECHANISM = "bootstrap.servers", "security.protocol", "sasl.mechanism"
ISOLATION, READ_COMMITTED = "isolation.level", "read_committed"

REFUSED = {
    "enable.auto.commit": "Spark keeps the offsets",
    "interceptor.classes": "there is no Java here",
    "auto.offset.reset": "where to begin is said by startingOffsets",
    "key.deserializer": "keys are bytes; cast them, or use keyFormat",
    "value.deserializer": "values are bytes; cast them, or use valueFormat",
}
REFUSED_WRITING = {
    "key.serializer": "the column key is string or binary",
    "value.serializer": "the column value is string or binary",
}
CLASSES = ("ssl.engine.factory.class", "sasl.client.callback.handler.class", "sasl.login.callback.handler.class")
"""Options that name Java classes. They change how a connection is made, so they are refused, not ignored."""

UNUSED_TLS = ("ssl.enabled.protocols", "ssl.protocol", "ssl.cipher.suites")
"""Options that are not used: the system's OpenSSL decides what they set."""

OF_GROUPS = frozenset(
    [
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "partition.assignment.strategy",
        "auto.commit.interval.ms",
    ]
)
"""Options that are not used: Spark, not a consumer group, decides which task reads which partitions."""

_OF_JAVA = """auto.include.jmx.reporter bootstrap.controllers compression.gzip.level compression.lz4.level
    compression.zstd.level config.providers enable.metrics.push internal.auto.downgrade.txn.commit
    internal.leave.group.on.close internal.throw.on.fetch.stable.offset.unsupported metadata.max.idle.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
    metrics.recording.level metrics.sample.window.ms partitioner.adaptive.partitioning.enable
    partitioner.availability.timeout.ms partitioner.ignore.keys retries sasl.jaas.config
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.oauthbearer.clock.skew.seconds
    sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
    security.providers share.acknowledgement.mode share.acquire.mode socket.connection.setup.timeout.max.ms
    ssl.keymanager.algorithm ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
    transaction.two.phase.commit.enable"""
OF_JAVA = OF_GROUPS.union(_OF_JAVA.split())
"""Options that Java's clients have and our client has no use for."""

KNOWN = {alias for option in (PRODUCER | CONSUMER).values() for alias in (option.name, *option.aliases)}


class GivenOptions(dict[str, str]):
    """Options of the client as users give them, without the prefix. Some are secrets, so its repr has names only."""

    def __repr__(self) -> str:
        return f"GivenOptions({', '.join(self)})"


def check_allowed(given: Mapping[str, str], *, writing: bool) -> None:
    """Raise WrongOption when an option is Spark's to set, or no broker is named. No broker is contacted."""
    for name, why in (REFUSED_WRITING if writing else REFUSED).items():
        if name in given:
            raise WrongOption(f"option kafka.{name} cannot be set: {why}")
    if not given.get(SERVERS, "").strip():
        raise WrongOption(f"option kafka.{SERVERS} is missing: HOST:PORT,... of one broker or more")


def client_options(given: Mapping[str, str], table: Mapping[str, Option] = NETWORK) -> dict[str, Any]:
    """Return the options for a client whose options are `table`.

    Raises WrongOption when one is wrong or not supported; its message names the option and shows no secret.
    """
    protocol = given.get(PROTOCOL, "").upper()
    by_name = {alias: option for option in table.values() for alias in (option.name, *option.aliases)}
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in java_stores.NAMES or name == jaas.NAME:
            continue  # _credentials and _tls read these
        if name.startswith("sasl.") and not protocol.startswith("SASL"):
            continue
        if name in CLASSES:
            raise WrongOption(f"option kafka.{name} cannot be used: there is no Java here")
        if name in by_name and name not in OF_GROUPS:
            found[name] = _checked(by_name[name], name, value)
        else:
            _log_unused(name)
    if protocol.startswith("SASL"):
        found |= _credentials(given)
    if protocol.endswith("SSL"):
        found |= _tls(given)
    return found


def isolation_of(given: Mapping[str, str]) -> str:
    """Return the isolation level as the consumer spells it. Raises WrongOption for any other word."""
    option = CONSUMER[ISOLATION]
    return str(option.kind(_checked(option, option.name, given.get(option.name, option.default))))


def _checked(option: Option, name: str, value: str) -> str:
    if option.name == MECHANISM and value.upper() in ("GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM"):
        raise WrongOption(f"option kafka.{name}={value}: not supported; PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512 are")
    try:
        option.kind(value)
    except ValueError as error:
        shown = "[hidden]" if option.secret else repr(value)
        raise WrongOption(f"option kafka.{name}={shown}: must be {error}") from None
    return value


def _log_unused(name: str) -> None:
    if name in UNUSED_TLS:
        log.warning("option kafka.%s is not used: TLS 1.2 and 1.3 are spoken, as OpenSSL is set up here", name)
    elif name in KNOWN or name in OF_JAVA:
        log.debug("option kafka.%s is not used", name)
    else:
        like = nearest(name, KNOWN | OF_JAVA | java_stores.NAMES)
        advice = f"; the nearest is kafka.{like}" if like else ""
        log.warning("option kafka.%s is not known and not used%s", name, advice)


def _credentials(given: Mapping[str, str]) -> dict[str, str]:
    """Return the credentials in `sasl.jaas.config`; empty if our own options have them instead.

    Raises WrongOption when both are missing, or `sasl.jaas.config` is wrong.
    """
    if jaas.NAME not in given:
        if not given.keys() & {"sasl.username", "sasl.plain.username"}:
            raise WrongOption(f"option kafka.{jaas.NAME} is missing: kafka.{PROTOCOL}={given[PROTOCOL]} needs it")
        return {}
    try:
        module, found = jaas.entry(given[jaas.NAME])
    except KbrokerError as error:
        raise WrongOption(f"option kafka.{error}") from None
    if module == "ScramLoginModule" and not given.keys() & {MECHANISM, "sasl.mechanisms"}:
        raise WrongOption(f"option kafka.{MECHANISM} is missing: SCRAM-SHA-256 or SCRAM-SHA-512, as {jaas.NAME} says")
    return found


def _tls(given: Mapping[str, str]) -> dict[str, Any]:
    """Return a TLS context made of Java's key stores and trust stores, if some are given.

    Raises WrongOption when a store cannot be used, or certificates are given in our own options too.
    """
    inner = java_stores.INNER_PASSWORD
    stores = {name for name in given if name in java_stores.NAMES} - {inner}
    if not stores:
        return {inner: given[inner]} if inner in given else {}
    for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"):
        if name in given:
            raise WrongOption(
                f"options kafka.{name} and kafka.{min(stores)} are given: say all in one way or the other"
            )
    try:
        return {"ssl.context": java_stores.context(given)}
    except ValueError as error:
        raise WrongOption(f"option kafka.{error}") from None
