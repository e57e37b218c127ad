"""The settings for operating the broker: part of the table in `definitions.py`."""

from __future__ import annotations

from kbroker.config.setting import Setting
from kbroker.rules.config_values import Kind, Limits

OPERATION = (
    Setting(
        "kbroker.http.address",
        Kind.STRING,
        "",
        "HOST:PORT to serve /metrics, /health and /ready on, without authentication. Empty: not served; "
        "port 0 lets the system pick one.",
    ),
    Setting(
        "kbroker.metrics.lag.partitions.max",
        Kind.INT,
        1000,
        "Of how many committed offsets /metrics tells how far they are behind; of others, only how many there are.",
        limits=Limits(0),
    ),
    Setting(
        "kbroker.disk.free.warning.percent",
        Kind.INT,
        5,
        "The log warns when a log directory's disk has less than this share of its space left. 0: never.",
        unit="percent",
        limits=Limits(0, 100),
    ),
    Setting(
        "kbroker.log.format",
        Kind.STRING,
        "text",
        "What the broker's log on stderr is made of: lines of text, or a JSON object a line.",
        limits=Limits(choices=("text", "json")),
    ),
    Setting(
        "kbroker.stop.timeout.ms",
        Kind.INT,
        10000,
        "How long a clean stop may take, with the hand-over of a member's leaderships. Five seconds later the process "
        "is ended; what is not flushed then is recovered at the next start.",
        unit="milliseconds",
        limits=Limits(0),
    ),
)
