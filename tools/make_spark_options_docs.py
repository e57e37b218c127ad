"""Writes docs/SPARK_OPTIONS.md from the table of options of `format("kbroker")`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import generated_page

from kbroker.spark.options.format_options import OPTIONS, Option, Use
from kbroker.spark.options.offsets import LATEST, Everywhere

HEAD = """# Options of format("kbroker")

Made by `make docs` from `kbroker/spark/options/format_options.py`; do not edit. How they are used:
[SPARK.md](SPARK.md).

Names are those of Spark's own Kafka connector, in any case of letters, where it has them. Beside them any option of the
client may be given as `kafka.NAME`: see [CLIENT_OPTIONS.md](CLIENT_OPTIONS.md); `kafka.bootstrap.servers` must be.
"""

SECTIONS = {"Reading": Use.READ, "Writing": Use.WRITE}
USES = {
    Use.BATCH_READ: "batches",
    Use.STREAM_READ: "streams",
    Use.BATCH_WRITE: "batches",
    Use.STREAM_WRITE: "streams",
}


def default_of(value: Any) -> str:
    if value is None or value == ():
        return "-"
    if value == Everywhere(LATEST):
        return "`latest`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def used_in(option: Option, use: Use) -> str:
    found = [name for one, name in USES.items() if one & option.use & use]
    return found[0] if len(found) == 1 else "both"


def document() -> Iterator[str]:
    yield HEAD
    for title, use in SECTIONS.items():
        yield f"## {title}\n"
        yield "| option | in | default | what it does |"
        yield "|---|---|---|---|"
        for option in OPTIONS.values():
            if option.use & use:
                doc = option.doc.replace("|", "\\|")
                yield f"| `{option.name}` | {used_in(option, use)} | {default_of(option.default)} | {doc} |"
        yield ""


if __name__ == "__main__":
    raise SystemExit(generated_page.write("SPARK_OPTIONS.md", "\n".join(document())))
