"""Writes `kbroker/protocol/schemas.json` and `kbroker/protocol/messages.pyi` from Apache Kafka's message definitions.

Run: `python tools/make_schemas.py [--release 3.9.1] [--jar FILE ...] [--check]` in the project's root.
Without a release: 3.9.1, and what `LATER` says as 4.3.1 has it.

The definitions are JSON files (with comments) inside Kafka's jars. Only facts are taken: API key, kind, versions, and
of each field its name, type, versions, tag, default and whether it may be dropped; no prose. One line per message:

    name: [api_key, kind, valid_versions, flexible_versions, fields, structs]
    field: [name, type, versions, {extras}]     the extras are left out when there are none
    extras: "null" nullable versions, "tag" the tag, "tagged" tagged versions, "default" when it is not the type's own,
            "drop" true when a version without the field drops its value silently (`ignorable`),
            "flexible" when it differs from the message's
    structs: {name: fields}

A later release's jars may be put in front (`--release 4.3.1 --release 3.9.1`): messages, versions and fields are the
union, the first release wins where they disagree.
"""

from __future__ import annotations

import argparse
import json
import keyword
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = ROOT / "kbroker" / "protocol" / "schemas.json"
STUB = ROOT / "kbroker" / "protocol" / "messages.pyi"

# Which jars of a release hold definitions that kbroker needs.
ARTIFACTS = ("kafka-clients", "kafka-group-coordinator", "kafka-transaction-coordinator")
DEFAULT_RELEASES = ("3.9.1",)
# The beginnings of names of messages that are taken from a later release, because 3.9 does not have them whole. It has
# a preview of the consumer group protocol (KIP-848), a part of transactions of version 2 (KIP-890), and one kind of
# resources with configs (KIP-1142).
LATER_RELEASE = "4.3.1"
LATER = (
    "ConsumerGroup", "TransactionLogValue", "EndTxnRe", "TxnOffsetCommit", "Produce", "ListConfigResources",
    "WriteTxnMarkers",
)  # fmt: skip
# The names in 3.9 of such messages that are called otherwise there: they are left out.
FORMER = ("ListClientMetricsResources",)
# The last version that is taken of such a message, if not all are.
HIGHEST = {"ProduceRequest": 12, "ProduceResponse": 12}

SCALARS = {
    "bool": "bool",
    "int8": "int",
    "int16": "int",
    "uint16": "int",
    "int32": "int",
    "uint32": "int",
    "int64": "int",
    "float64": "float",
    "uuid": "bytes",
    "string": "str",
    "bytes": "bytes",
    "records": "bytes | memoryview",
}
# What every message class has besides its fields.
RESERVED = {"encode", "decode", "API_KEY", "MIN_VERSION", "MAX_VERSION", "FLEXIBLE_FROM"}

Json = dict[str, Any]


# --- reading the definitions ------------------------------------------------------------------------------------------


def release_jars(release: str) -> list[Path]:
    """Return the jars of one release, from Maven Central or the cache."""
    sys.path.insert(0, str(ROOT))
    from tests.kit.kafka import maven

    return [maven.jar(f"org.apache.kafka:{artifact}:{release}") for artifact in ARTIFACTS]


def read_definitions(jars: list[Path]) -> dict[str, Json]:
    """Return every message definition in the jars, by message name."""
    found: dict[str, Json] = {}
    for path in jars:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                if entry.startswith("common/message/") and entry.endswith(".json"):
                    text = archive.read(entry).decode()
                    definition = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
                    if definition["validVersions"] != "none":
                        found[definition["name"]] = as_in_older_releases(definition)
    return dict(sorted(found.items()))


def as_in_older_releases(definition: Json) -> Json:
    """Return the definition of a coordinator's record in the form of releases before 4.0; others as they are.

    Since 4.0 such records have an API key. For a record's key it is the number in front of it on disk, which older
    definitions call its version.
    """
    if definition["type"] not in ("coordinator-key", "coordinator-value"):
        return definition
    changed = {**definition, "type": "data", "apiKey": None}
    if definition["type"] == "coordinator-key":
        version = str(definition["apiKey"])
        changed["validVersions"] = version
        changed["fields"] = [{**field, "versions": version} for field in definition["fields"]]
    return changed


def snake_case(name: str) -> str:
    """Return `throttle_time_ms` for `ThrottleTimeMs`. A run of capitals is one word, as in the protocol guide."""
    out = ""
    previous_upper = True
    for character in name:
        if character.isupper() and not previous_upper:
            out += "_"
        previous_upper = character.isupper()
        out += character.lower()
    return out


def default_value(definition: Json) -> Any:
    """Return a field's default as a JSON value, or `...` when it is the default of its type."""
    given = definition.get("default")
    if given is None or given == "":
        return ...
    if given == "null":
        return None
    kind = definition["type"]
    if kind == "bool":
        value: Any = given if isinstance(given, bool) else {"true": True, "false": False}[given]
        return ... if value is False else value
    if kind in ("string", "uuid"):
        return given
    value = float(given) if kind == "float64" else int(given, 0) if isinstance(given, str) else int(given)
    return ... if value == 0 else value


def compact_fields(definitions: list[Json], structs: Json) -> list[Any]:
    """Return the fields of one struct. Nested structs are put into `structs`."""
    fields = []
    for definition in definitions:
        name = snake_case(definition["name"])
        if keyword.iskeyword(name) or name in RESERVED:
            raise SystemExit(f"field {name!r} cannot be an attribute of a message class")
        if "fields" in definition:
            struct = definition["type"].removeprefix("[]")
            if struct in structs:
                raise SystemExit(f"struct {struct} is defined twice")
            structs[struct] = None  # keeps its place in front of what is nested in it
            structs[struct] = compact_fields(definition["fields"], structs)
        extras: Json = {}
        if definition.get("nullableVersions", "none") != "none":
            extras["null"] = definition["nullableVersions"]
        if "tag" in definition:
            extras["tag"] = int(definition["tag"])
            extras["tagged"] = definition["taggedVersions"]
        default = default_value(definition)
        if default is not ...:
            extras["default"] = default
        if definition.get("ignorable", False) in (True, "true"):
            extras["drop"] = True
        if "flexibleVersions" in definition:
            extras["flexible"] = definition["flexibleVersions"]
        versions = definition.get("versions") or definition["taggedVersions"]
        fields.append([name, definition["type"], versions, *([extras] if extras else [])])
    return fields


def compact_message(definition: Json) -> list[Any]:
    structs: Json = {}
    for common in definition.get("commonStructs", []):
        structs[common["name"]] = None
        structs[common["name"]] = compact_fields(common["fields"], structs)
    fields = compact_fields(definition["fields"], structs)
    return [
        definition.get("apiKey"),
        definition["type"],
        definition["validVersions"],
        definition["flexibleVersions"],
        fields,
        dict(sorted(structs.items())),
    ]


# --- joining releases -------------------------------------------------------------------------------------------------


def version_range(text: str) -> tuple[int, int]:
    """Parse `3+`, `2-5`, `7` or `none` into a closed range; `none` is (0, -1)."""
    if text == "none":
        return 0, -1
    if text.endswith("+"):
        return int(text[:-1]), 32767
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def range_text(low: int, high: int) -> str:
    return f"{low}+" if high == 32767 else str(low) if low == high else f"{low}-{high}"


def join_ranges(newer: str, older: str) -> str:
    ranges = [one for one in (version_range(newer), version_range(older)) if one[0] <= one[1]]
    if not ranges:
        return "none"
    return range_text(min(low for low, _ in ranges), max(high for _, high in ranges))


def join_fields(newer: list[Any], older: list[Any]) -> list[Any]:
    """Return the fields of both releases, in the newer order.

    A field that only the older release has stays behind its neighbour there.
    """
    by_name = {field[0]: field for field in older}
    joined = []
    for field in newer:
        old = by_name.get(field[0])
        joined.append([*field[:2], join_ranges(field[2], old[2]), *field[3:]] if old else field)
    for index, field in enumerate(older):
        if field[0] not in {one[0] for one in newer}:
            before = older[index - 1][0] if index else None
            place = next((i + 1 for i, one in enumerate(joined) if one[0] == before), 0)
            joined.insert(place, field)
    return joined


def join_messages(newer: Json, older: Json) -> Json:
    joined = dict(older)
    for name, message in newer.items():
        old = older.get(name)
        if old is None:
            joined[name] = message
            continue
        structs = dict(old[5])
        for struct, fields in message[5].items():
            structs[struct] = join_fields(fields, structs[struct]) if struct in structs else fields
        joined[name] = [
            message[0],
            message[1],
            join_ranges(message[2], old[2]),
            message[3],
            join_fields(message[4], old[4]),
            dict(sorted(structs.items())),
        ]
    return dict(sorted(joined.items()))


def up_to(message: list[Any], highest: int) -> list[Any]:
    """Return a message without the versions above `highest`, and without the fields that only these have."""

    def kept(fields: list[Any]) -> list[Any]:
        return [
            [*field[:2], "0+" if field[2] == f"0-{highest}" else field[2], *field[3:]]
            for field in fields
            if version_range(field[2])[0] <= highest
        ]

    low, _ = version_range(message[2])
    structs = {struct: kept(fields) for struct, fields in message[5].items()}
    return [*message[:2], range_text(low, highest), message[3], kept(message[4]), structs]


# --- writing ----------------------------------------------------------------------------------------------------------


def schemas_text(messages: Json) -> str:
    lines = [f"{json.dumps(name)}:{json.dumps(message, separators=(',', ':'))}" for name, message in messages.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def annotation(field: list[Any], prefix: str) -> str:
    kind = field[1]
    extras = field[3] if len(field) > 3 else {}
    element = kind.removeprefix("[]")
    text = SCALARS.get(element) or f"{prefix}.{element}"
    if kind.startswith("[]"):
        text = f"list[{text}]"
    if "null" in extras or extras.get("default", ...) is None or kind == "records":
        text += " | None"
    return text


def stub_class(name: str, base: str, fields: list[Any], indent: str, prefix: str) -> list[str]:
    lines = [f"{indent}    {field[0]}: {annotation(field, prefix)} = ..." for field in fields]
    return [f"{indent}class {name}({base}):", *(lines or [f"{indent}    pass"])]


def stub_text(messages: Json) -> str:
    lines = [
        '"""Every message class of the protocol. Written by tools/make_schemas.py; do not edit."""',
        "",
        "from kbroker._core.wire.codec import Message as Message, Struct as Struct",
        "",
        "NAMES: tuple[str, ...]",
    ]
    for name, message in messages.items():
        lines += ["", *stub_class(name, "Message", message[4], "", name)]
        for struct, fields in message[5].items():
            lines += ["", *stub_class(struct, "Struct", fields, "    ", name)]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", action="append", help=f"a release of Kafka; default {', '.join(DEFAULT_RELEASES)}")
    parser.add_argument("--jar", action="append", type=Path, help="take these jars as one release instead")
    parser.add_argument("--check", action="store_true", help="only say whether the written files are current")
    options = parser.parse_args()
    releases = [options.jar] if options.jar else [release_jars(one) for one in options.release or DEFAULT_RELEASES]
    messages: Json = {}
    for jars in reversed(releases):
        compact = {name: compact_message(definition) for name, definition in read_definitions(jars).items()}
        messages = join_messages(compact, messages)
    if not (options.jar or options.release):
        named = {n: d for n, d in read_definitions(release_jars(LATER_RELEASE)).items() if n.startswith(LATER)}
        messages = join_messages({name: compact_message(one) for name, one in named.items()}, messages)
        messages = {name: one for name, one in messages.items() if not name.startswith(FORMER)}
        for name, highest in HIGHEST.items():
            messages[name] = up_to(messages[name], highest)
    stale = []
    for path, text in ((SCHEMAS, schemas_text(messages)), (STUB, stub_text(messages))):
        if not path.exists() or path.read_text() != text:
            stale.append(path.relative_to(ROOT))
            if not options.check:
                path.write_text(text)
    verb = "stale" if options.check else "written"
    print(f"{len(messages)} messages; {verb}: {', '.join(map(str, stale)) or 'none'}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
