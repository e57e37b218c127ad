"""Writes docs/CONFIG.md from the tables of settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import generated_page

from kbroker.cluster.group_configs import GROUP_CONFIGS
from kbroker.cluster.topic_configs import TOPIC_CONFIGS
from kbroker.config.definitions import ALIASES, SECTIONS
from kbroker.config.not_read import NOT_READ
from kbroker.config.setting import Setting
from kbroker.rules.config_values import INT32_MAX, INT64_MAX, Value, format_value

HEAD = """# Settings

Made by `make docs` from `kbroker/config/definitions.py`, `kbroker/cluster/topic_configs.py` and `group_configs.py`; do
not edit.

Settings come from, the later winning: the defaults below; `server.properties`, as Kafka reads it (`kbroker start
server.properties`); the environment (`KBROKER_NUM_PARTITIONS=3` sets `num.partitions`, `KBROKER_HTTP_ADDRESS` sets
`kbroker.http.address`); `--override num.partitions=3`; `--data DIR`, which sets `log.dirs`. An unknown name is warned
about with the nearest known one, or refused with `--strict`. *dynamic*: may be changed while the broker runs
(`kbroker configs alter`).
"""

GROUPS = """
A consumer group's own value (KIP-848) wins over the broker setting that gives its default. The value in force is always
within the broker's bounds. `kbroker configs alter group NAME` sets it, or Kafka's `kafka-configs --group NAME`.
""".strip()


def default_of(value: Value | None) -> str:
    if value is None or value in ("", ()):
        return "-"
    return {str(INT64_MAX): "no limit", str(INT32_MAX): "no limit"}.get(format_value(value), f"`{format_value(value)}`")


def allowed_by(setting: Setting) -> str:
    return setting.allowed().replace(str(INT64_MAX), "2^63-1").replace(str(INT32_MAX), "2^31-1")


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    heads = list(heads)
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def broker_row(setting: Setting) -> list[str]:
    words = [setting.doc]
    if setting.kafka_default:
        words.append(f"Kafka's default: `{setting.kafka_default}`.")
    if setting.dynamic:
        words.append("*dynamic*")
    return [f"`{setting.name}`", allowed_by(setting), default_of(setting.default), " ".join(words)]


def document() -> str:
    """Return the whole text of docs/CONFIG.md."""
    lines = [HEAD]
    for section, settings in SECTIONS.items():
        lines += [f"## {section}", ""]
        lines += table(["setting", "allowed", "default", "what it does"], map(broker_row, settings))
        lines.append("")
    lines += ["## Topics", "", "A topic's own value wins over the broker setting that gives its default.", ""]
    lines += table(
        ["setting", "default", "broker setting", "what it does"],
        (
            [
                f"`{topic.name}`",
                default_of(topic.default) + (f" {topic.unit}" if topic.unit else ""),
                ", ".join(f"`{synonym.name}`" for synonym in topic.synonyms) or "-",
                topic.doc,
            ]
            for topic in TOPIC_CONFIGS.values()
        ),
    )
    lines += ["", "## Groups", "", GROUPS, ""]
    lines += table(
        ["setting", "default", "broker setting", "bounds", "what it does"],
        (
            [
                f"`{group.name}`",
                f"{default_of(group.default)} ms",
                f"`{group.synonym}`",
                f"`{group.smallest}`, `{group.largest}`",
                group.doc,
            ]
            for group in GROUP_CONFIGS.values()
        ),
    )
    lines += ["", "## Old names", "", "Names of Kafka 0.7 and 0.8 that are still understood.", ""]
    lines += table(
        ["old name", "is read as"],
        (
            [f"`{name}`", f"`{setting.name}`" + (f" (times {factor})" if factor != 1 else "")]
            for name, (setting, factor) in sorted(ALIASES.items())
        ),
    )
    lines += ["", "## Settings of Kafka that kbroker does not read", "", "`start` lists those it finds.", ""]
    by_reason: dict[str, list[str]] = {}
    for name, reason in sorted(NOT_READ.items()):
        by_reason.setdefault(reason, []).append(f"`{name}`")
    for reason, names in by_reason.items():
        lines.append(generated_page.wrapped(f"- {reason}: {', '.join(names)}"))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(generated_page.write("CONFIG.md", document()))
