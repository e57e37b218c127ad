"""The format of the broker's log on stderr: lines of text, or one JSON object a line (kbroker.log.format)."""

from __future__ import annotations

import logging
import sys
import time

TEXT = "%(asctime)s %(levelname)s %(message)s"


class JsonLines(logging.Formatter):
    """Formats a record of the log as JSON: `time` (UTC, with milliseconds), `level`, `logger`, `message`.

    A record of an exception also has `exception`.
    """

    def format(self, record: logging.LogRecord) -> str:
        import json  # imported here: a start whose log is text does not need it

        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def begin_log(level: str, form: str) -> None:
    """Send log records of `level` and above to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
