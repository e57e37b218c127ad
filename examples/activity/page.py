"""A page with live plots of the stream: `python -m examples.activity.page`, then http://localhost:8080/.

A consumer counts the events of each topic by second and keeps the newest trend; browsers get both once a second as
server-sent events.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections import Counter
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kbroker.client import Consumer

EVENTS = ("page_view", "search", "ad_click")
TREND = "trending"
PAGE = Path(__file__).with_name("page.html")


class Plots:
    """What the page shows. One thread calls `run`; threads of any number of browsers call `next`."""

    def __init__(self, bootstrap_servers: str):
        self._consumer = Consumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="latest")
        self._consumer.assign_topics(*EVENTS)
        self._trend = Consumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest")
        self._trend.assign_topics(TREND)
        self._changed = threading.Condition()
        self._number = 0
        self._shown: dict[str, Any] = {}
        self._windows: dict[str, Counter[str]] = {}
        self._ended = False

    def run(self) -> None:
        """Poll the topics until `close`, and show new figures once a second."""
        while not self._ended:
            began = time.monotonic()
            counts = Counter(dict.fromkeys(EVENTS, 0))
            while (left := began + 1 - time.monotonic()) > 0 and not self._ended:
                records = self._consumer.poll(left)
                for partition in records.partitions():
                    counts[partition.topic] += len(records.of_partition(*partition))
            for record in self._trend.poll(0):
                row = json.loads(record.value or b"{}")
                self._windows.setdefault(row["start"], Counter())[row["subject"]] = row["views"]
            for old in sorted(self._windows)[:-2]:
                del self._windows[old]
            with self._changed:
                self._number += 1
                newest = self._windows[max(self._windows)] if self._windows else Counter()
                self._shown = {"second": int(time.time()), "rates": counts, "trend": newest.most_common()}
                self._changed.notify_all()

    def next(self, seen: int) -> tuple[int, dict[str, Any]]:
        """Wait, for 5 seconds at most, for figures newer than number `seen`. Return the newest, with their number."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > seen or self._ended, 5)
            return self._number, self._shown

    def close(self) -> None:
        self._ended = True
        self._consumer.close()
        self._trend.close()


def handler_of(plots: Plots) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/":
                self._answer("text/html; charset=utf-8")
                self.wfile.write(PAGE.read_bytes())
            elif self.path == "/plots":
                self._answer("text/event-stream")
                self._stream()
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _answer(self, kind: str) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Cache-Control", "no-store")
            self.end_headers()

        def _stream(self) -> None:
            seen = 0
            try:
                while not plots._ended:
                    seen, shown = plots.next(seen)
                    self.wfile.write(f"data: {json.dumps(shown)}\n\n".encode())
                    self.wfile.flush()
            except ConnectionError:
                pass  # the browser has gone

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", default="localhost:9092")
    parser.add_argument("--port", type=int, default=8080)
    given = parser.parse_args()
    plots = Plots(given.bootstrap_server)
    threading.Thread(target=plots.run, daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", given.port), handler_of(plots))
    server.daemon_threads = True
    print(f"http://localhost:{server.server_address[1]}/", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        plots.close()


if __name__ == "__main__":
    main()
