"""The arguments that say which cluster a command talks to, and how; the options of kbroker.client that they become."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from kbroker.cli import arguments as args
from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.config.consumer import CONSUMER
from kbroker.client.config.network import NETWORK
from kbroker.client.config.option import Option
from kbroker.client.config.producer import PRODUCER
from kbroker.client.errors import ConnectionFailed
from kbroker.client.security import jaas, java_stores
from kbroker.config.properties import read_properties
from kbroker.errors import KbrokerError
from kbroker.net.addresses import parse_bootstrap
from kbroker.rules.nearest import nearest

C = TypeVar("C")
KNOWN = PRODUCER | CONSUMER
STORES = (
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.keystore.location",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
)
OUR_PASSWORDS = {"ssl.key.password", "ssl.keystore.password"}  #: Java's names that our clients have, too
OUR_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add `-b`, `--timeout`, `--command-config` and `-X`."""
    args.add_bootstrap(parser)
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        help="a .properties file of the client's options, those of TLS and SASL among them (docs/CLIENT_OPTIONS.md)",
    )
    parser.add_argument(
        "-X",
        "--option",
        type=args.setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one such option, as in -X security.protocol=SSL",
    )


def names_cluster(arguments: argparse.Namespace) -> bool:
    """Return whether the user has said which cluster to talk to, or how: by arguments, or in the environment."""
    given = (arguments.bootstrap_server, arguments.command_config, arguments.option)
    return any(given) or bool(os.environ.get(args.BOOTSTRAP_VARIABLE))


def client_options(arguments: argparse.Namespace, table: Mapping[str, Option], **own: Any) -> dict[str, Any]:
    """Return the options for `make_client`: those that are in `table`.

    The user's options win over the command's `own`. The user's file may have options of other kinds of clients too.
    Java's trust and key stores are returned as they are given. Raises KbrokerError if an option of `-X` is unknown.
    """
    timeout_ms = int(arguments.timeout * 1000)
    options: dict[str, Any] = {
        "client.id": "kbroker-cli",
        "default.api.timeout.ms": timeout_ms,
        "request.timeout.ms": timeout_ms,
        "socket.connection.setup.timeout.ms": timeout_ms,
        **{name.replace("_", "."): value for name, value in own.items()},
        **_options_in_file(arguments.command_config),
    }
    for name, value in arguments.option:
        found = _option(name, value)
        if found is None:
            raise KbrokerError(f"-X {name}: there is no such option{_advice(name)}")
        options |= found
    if arguments.bootstrap_server is not None:
        options["bootstrap.servers"] = arguments.bootstrap_server
    elif "bootstrap.servers" not in options:
        options["bootstrap.servers"] = _addresses_in_environment() or args.DEFAULT_BOOTSTRAP
    parse_bootstrap(options["bootstrap.servers"])
    names = {alias for option in table.values() for alias in (option.name, *option.aliases)} | java_stores.NAMES
    return {name: value for name, value in options.items() if name in names}


def connect(arguments: argparse.Namespace) -> AdminClient:
    """Return an AdminClient that is connected. Raises ConnectionFailed at once if no broker is reached."""
    admin = make_client(AdminClient, client_options(arguments, NETWORK))
    try:
        admin.check_connection()
    except ConnectionFailed as error:
        admin.close()
        error.hint = error.hint.replace("bootstrap.servers", f"-b or {args.BOOTSTRAP_VARIABLE}")
        raise
    except BaseException:
        admin.close()
        raise
    return admin


def make_client(kind: type[C], options: Mapping[str, Any]) -> C:
    """Make a client with these options. Raises KbrokerError if one of them is wrong."""
    try:
        return kind(_with_stores(options))  # type: ignore[call-arg]
    except (TypeError, ValueError) as error:
        raise KbrokerError(str(error)) from None


def _with_stores(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with an SSL context instead of Java's trust and key stores.

    Raises ValueError if a store cannot be read, or if the options have both Java's stores and our certificate files.
    """
    stores = [name for name in STORES if name in options]
    without = {name: value for name, value in options.items() if name not in java_stores.NAMES - OUR_PASSWORDS}
    if not stores or not str(options.get("security.protocol", "")).upper().endswith("SSL"):
        return without
    for name in OUR_FILES:
        if name in options:
            raise ValueError(f"{name} and {stores[0]} are given: say all in one way or the other")
    return {**without, "ssl.context": java_stores.context(options)}


def _addresses_in_environment() -> str | None:
    """Return the addresses of brokers in the environment variable, if it is set.

    Raises KbrokerError if they are not HOST:PORT,...
    """
    text = os.environ.get(args.BOOTSTRAP_VARIABLE)
    if text:
        try:
            parse_bootstrap(text)
        except KbrokerError as error:
            raise KbrokerError(f"environment variable {args.BOOTSTRAP_VARIABLE}: {error}") from None
    return text


def _options_in_file(path: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value, line in read_properties(path) if path is not None else ():
        option = _option(name, value)
        if option is None:
            print(f"kbroker: {path}:{line}: {name} is not known and not used{_advice(name)}", file=sys.stderr)
        else:
            found |= option
    return found


def _option(name: str, value: str) -> dict[str, str] | None:
    """Return the options that one option of the user stands for; None if its name is unknown.

    Raises KbrokerError if the value is wrong.
    """
    if name == jaas.NAME:
        return jaas.credentials(value)
    known = name in java_stores.NAMES or any(name == option.name or name in option.aliases for option in KNOWN.values())
    return {name: value} if known else None


def _advice(name: str) -> str:
    like = nearest(name, java_stores.NAMES.union(KNOWN))
    return f"; the nearest is {like}" if like else ""
