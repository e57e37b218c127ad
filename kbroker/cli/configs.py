"""Show and change settings of topics, brokers and groups."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from kbroker.cli import arguments as args
from kbroker.cli.client_options import add_cluster, connect
from kbroker.cli.known_settings import BROKER, GROUP, TOPIC, unknown_settings_named
from kbroker.cli.outcome import USAGE
from kbroker.cli.output import print_json, print_note, print_table
from kbroker.cli.topic_facts import missing_topics_named
from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.admin.results import ConfigEntry
from kbroker.errors import KbrokerError

EXAMPLES = """examples:
  kbroker configs describe topic views
  kbroker configs describe topic views --all --json
  kbroker configs alter topic views --set retention.ms=3600000 --unset segment.bytes
  kbroker configs describe broker 1
  kbroker configs describe broker default
  kbroker configs alter broker 1 --set log.retention.ms=3600000
  kbroker configs alter group readers --set consumer.session.timeout.ms=50000
"""

KINDS = (TOPIC, BROKER, GROUP)
DEFAULT = "default"
CHANGES = ("set", "append", "subtract", "unset")
SOURCES = {
    "DYNAMIC_TOPIC_CONFIG": "topic",
    "DYNAMIC_BROKER_CONFIG": "broker",
    "DYNAMIC_DEFAULT_BROKER_CONFIG": "all brokers",
    "STATIC_BROKER_CONFIG": "start",
    "DEFAULT_CONFIG": "default",
    "DYNAMIC_BROKER_LOGGER_CONFIG": "logger",
    "GROUP_CONFIG": "group",
}


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    describing = actions.add_parser("describe", help="show settings")
    describing.add_argument("--all", action="store_true", help="those that have their default, too")
    args.add_json(describing)
    altering = actions.add_parser("alter", help="change settings")
    for flag, text in (("set", "give it a value"), ("append", "add to a list"), ("subtract", "take from a list")):
        altering.add_argument(
            f"--{flag}", type=args.setting, action="append", default=[], metavar="NAME=VALUE", help=text
        )
    altering.add_argument("--unset", action="append", default=[], metavar="NAME", help="give it back its default")
    altering.add_argument("--validate-only", action="store_true", help="only say whether it would be accepted")
    for action in (describing, altering):
        action.add_argument("kind", choices=KINDS)
        action.add_argument(
            "name",
            help=f"the topic's or group's name, or the broker's number; {DEFAULT} is what is set for all brokers",
        )
        add_cluster(action)


def run(arguments: argparse.Namespace) -> int:
    # For a topic whose settings were lost, no changes is a change, too: it has defaults then, and retention goes on.
    must_change = arguments.action == "alter" and arguments.kind != TOPIC
    if must_change and not any(getattr(arguments, change) for change in CHANGES):
        print(f"kbroker configs alter: say what to change: --{', --'.join(CHANGES)}", file=sys.stderr)
        return USAGE
    with connect(arguments) as admin:
        if arguments.action == "describe":
            _describe(admin, arguments)
        else:
            _alter(admin, arguments)
    return 0


def _node_id(name: str) -> int | None:
    if name == DEFAULT:
        return None
    if not (name.isascii() and name.isdigit()):
        raise KbrokerError(f"broker {name!r}: it is neither a number nor {DEFAULT}")
    return int(name)


def _describe(admin: AdminClient, arguments: argparse.Namespace) -> None:
    configs: dict[str, ConfigEntry]
    if arguments.kind == TOPIC:
        with missing_topics_named(admin, [arguments.name]):
            configs = admin.describe_topic_config(arguments.name)
    elif arguments.kind == BROKER:
        configs = admin.describe_broker_config(_node_id(arguments.name))
    else:
        configs = admin.describe_group_config(arguments.name)
    found = [
        {
            "name": config.name,
            "value": config.value,
            "source": SOURCES.get(config.source, config.source),
            "read_only": config.is_read_only,
            "sensitive": config.is_sensitive,
        }
        for config in sorted(configs.values(), key=lambda config: config.name)
        if arguments.all or not config.is_default
    ]
    if arguments.json:
        print_json(found)
    else:
        print_table(
            ["setting", "value", "set by"],
            ([str(c["name"]), "[hidden]" if c["sensitive"] else c["value"], str(c["source"])] for c in found),
        )
        if not found and not arguments.all:
            print_note("nothing is set; --all shows what holds by default")


def _alter(admin: AdminClient, arguments: argparse.Namespace) -> None:
    changes = {**dict(arguments.set), **dict.fromkeys(arguments.unset)}
    lists = {"append": _joined(arguments.append), "subtract": _joined(arguments.subtract)}
    only = arguments.validate_only
    with unknown_settings_named(arguments.kind, {**changes, **lists["append"], **lists["subtract"]}):
        if arguments.kind == TOPIC:
            with missing_topics_named(admin, [arguments.name]):
                admin.alter_topic_config(arguments.name, changes, **lists, validate_only=only)
        elif arguments.kind == BROKER:
            admin.alter_broker_config(_node_id(arguments.name), changes, **lists, validate_only=only)
        else:
            admin.alter_group_config(arguments.name, changes, **lists, validate_only=only)
    print_note(f"{arguments.kind} {arguments.name!r}: {'this would be accepted' if only else 'changed'}")


def _joined(items: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Join the values that are given for the same setting several times, with commas."""
    found: dict[str, str] = {}
    for name, value in items:
        found[name] = f"{found[name]},{value}" if name in found else value
    return found
