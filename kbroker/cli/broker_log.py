"""How the broker's log looks on stderr: lines of text, or a JSON object a line (kbroker.log.format)."""

from __future__ import annotations

import logging
import sys
import time

TEXT = "%(asctime)s %(levelname)s %(message)s"


class JsonLines(logging.Formatter):
    """`time` (UTC, with milliseconds), `level`, `logger`, `message`; `exception` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        import json  # a start whose log is text has no use for it

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
    """From now on everything that the broker has to say goes to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
