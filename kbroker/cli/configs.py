"""Show and change settings of topics, brokers and groups."""

from __future__ import annotations

import argparse
from typing import Any

from kbroker.cli import arguments as args
from kbroker.cli.output import print_json, print_table
from kbroker.net.blocking_client import BlockingClient, raise_for
from kbroker.protocol import messages as M

EXAMPLES = """examples:
  kbroker configs describe topic views
  kbroker configs describe topic views --all --json
  kbroker configs alter topic views --set retention.ms=3600000 --unset segment.bytes
  kbroker configs describe broker 1
  kbroker configs alter broker 1 --set log.retention.ms=3600000
  kbroker configs alter group readers --set consumer.session.timeout.ms=50000
"""

RESOURCE_TYPES = {"topic": 2, "broker": 4, "group": 32}
SOURCES = {1: "topic", 2: "broker", 3: "all brokers", 4: "start", 5: "default", 6: "logger", 8: "group"}
SET, UNSET, APPEND, SUBTRACT = 0, 1, 2, 3


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
        action.add_argument("kind", choices=RESOURCE_TYPES)
        action.add_argument("name", help="of the topic or group, or number of the broker")
        args.add_bootstrap(action)


def run(arguments: argparse.Namespace) -> int:
    with args.connect(arguments) as client:
        if arguments.action == "describe":
            _describe(client, arguments)
        else:
            _alter(client, arguments)
    return 0


def _node_id(arguments: argparse.Namespace) -> int | None:
    """A broker's settings are asked of that broker."""
    return int(arguments.name) if arguments.kind == "broker" and arguments.name.isdigit() else None


def _describe(client: BlockingClient, arguments: argparse.Namespace) -> None:
    request = M.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(
        resource_type=RESOURCE_TYPES[arguments.kind], resource_name=arguments.name, configuration_keys=None
    )
    found: list[dict[str, Any]] = []
    for result in client.call(request(resources=[resource]), _node_id(arguments)).results:
        raise_for(result.error_code, result.error_message, f"{arguments.kind} {arguments.name!r}")
        found += [
            {
                "name": config.name,
                "value": config.value,
                "source": SOURCES.get(config.config_source, str(config.config_source)),
                "read_only": config.read_only,
                "sensitive": config.is_sensitive,
            }
            for config in sorted(result.configs, key=lambda config: str(config.name))
            if arguments.all or config.config_source != 5
        ]
    if arguments.json:
        print_json(found)
    else:
        print_table(
            ["setting", "value", "set by"],
            ([c["name"], "[hidden]" if c["sensitive"] else c["value"], c["source"]] for c in found),
        )


def _alter(client: BlockingClient, arguments: argparse.Namespace) -> None:
    request = M.IncrementalAlterConfigsRequest
    changes = [
        *((name, SET, value) for name, value in arguments.set),
        *((name, UNSET, None) for name in arguments.unset),
        *((name, APPEND, value) for name, value in arguments.append),
        *((name, SUBTRACT, value) for name, value in arguments.subtract),
    ]
    resource = request.AlterConfigsResource(
        resource_type=RESOURCE_TYPES[arguments.kind],
        resource_name=arguments.name,
        configs=[request.AlterableConfig(name=name, config_operation=how, value=value) for name, how, value in changes],
    )
    answer = client.call(request(resources=[resource], validate_only=arguments.validate_only), _node_id(arguments))
    for response in answer.responses:
        raise_for(response.error_code, response.error_message, f"{arguments.kind} {arguments.name!r}")
