"""The value of `sasl.jaas.config` in Java's property files: a login module and its options.

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="secret";

Values are words, or strings in single or double quotes; a backslash takes the next character literally.
"""

from __future__ import annotations

import re

from kbroker.errors import KbrokerError

NAME = "sasl.jaas.config"
MODULES = ("PlainLoginModule", "ScramLoginModule")
FLAGS = ("required", "requisite", "sufficient", "optional")
ENTRY = re.compile(r"\s*(?P<module>[\w.$-]+)\s+(?P<flag>\w+)\b(?P<options>.*);\s*", re.DOTALL)
OPTION = re.compile(
    r"""\s+(?P<name>[\w.$-]+)\s*=\s*
    (?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'|(?P<word>[^\s"'=;]+))""",
    re.VERBOSE | re.DOTALL,
)


def credentials(text: str) -> dict[str, str]:
    """Return `sasl.username` and `sasl.password` of an entry.

    Raises KbrokerError when the text is not an entry that has both. The message tells no secret.
    """
    return entry(text)[1]


def entry(text: str) -> tuple[str, dict[str, str]]:
    """Return the module's name, one of MODULES, and what `credentials` returns.

    Raises KbrokerError when the text is not an entry that has a user name and a password.
    """
    found = ENTRY.fullmatch(text)
    if found is None:
        raise KbrokerError(f'{NAME} is not MODULE required username="..." password="...";')
    module = found["module"].rpartition(".")[2]
    if module not in MODULES:
        raise KbrokerError(f"{NAME}: {module} is not supported, only {' and '.join(MODULES)}")
    if found["flag"].lower() not in FLAGS:
        raise KbrokerError(f"{NAME}: behind the module stands one of {', '.join(FLAGS)}")
    options = _options(found["options"])
    for name in ("username", "password"):
        if name not in options:
            raise KbrokerError(f"{NAME} has no {name}")
    return module, {f"sasl.{name}": options[name] for name in ("username", "password")}


def _options(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    while text[at:].strip():
        option = OPTION.match(text, at)
        if option is None:
            behind = f"what follows {[*found][-1]}" if found else "its first option"
            raise KbrokerError(f"{NAME}: {behind} is not NAME=VALUE, or its quotes do not end")
        quoted = option["double"] if option["double"] is not None else option["single"]
        found[option["name"]] = option["word"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        at = option.end()
    return found
