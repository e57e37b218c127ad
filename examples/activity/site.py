"""A site whose members view pages, search, and click on ads: `python -m examples.activity.site --rate 2000`.

Publishes JSON to the topics page_view, search and ad_click, keyed by member, and counts what it sends, by minute, into
the audit topic. Members like the pages of some subjects, so that a report finds something.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import time
from collections.abc import Iterator

from kbroker.client import AuditHandler, Producer

SUBJECTS = ("climbing", "cooking", "sailing", "chess", "gardening", "astronomy", "trains", "jazz")
PAGES = 25  #: of each subject
MEMBERS = 10_000
TICK_S = 0.05
AUDIT_WINDOW_MS = 60_000

Event = tuple[str, dict[str, object]]


class Site:
    def __init__(self, seed: int):
        self._random = random.Random(seed)

    def events(self) -> Iterator[Event]:
        """Yield topics and events, for ever: a member views pages of a subject, and sometimes searches or clicks."""
        draw = self._random
        while True:
            member = int(MEMBERS * draw.random() ** 2)
            subject = SUBJECTS[(member + int(draw.expovariate(1.5))) % len(SUBJECTS)]
            page = self._page(subject)
            if draw.random() < 0.15:
                yield "search", {"member": member, "words": f"{subject} {draw.choice(('book', 'club', 'near me'))}"}
            for _ in range(1 + int(draw.expovariate(0.6))):
                yield "page_view", {"member": member, "page": page, "referrer": subject}
                if draw.random() < 0.05:
                    yield "ad_click", {"member": member, "ad": f"ad-{draw.randrange(40)}", "page": page}
                page = self._page(subject)

    def _page(self, subject: str) -> str:
        return f"{subject}/{int(PAGES * self._random.random() ** 3)}"


def publish(producer: Producer, events: Iterator[Event], rate: float, seconds: float) -> int:
    """Send `rate` events a second for so many seconds, or until Ctrl-C or SIGTERM. Return how many were sent."""
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    sent = 0
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds and not ended:
        for _ in range(int(rate * passed) - sent):
            topic, event = next(events)
            producer.send_nowait(topic, json.dumps(event).encode(), key=b"%d" % event["member"])
            sent += 1
        time.sleep(TICK_S)
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", default="localhost:9092")
    parser.add_argument("--rate", type=float, default=1000, help="events a second")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    audit = AuditHandler(window_ms=AUDIT_WINDOW_MS)
    with Producer(bootstrap_servers=given.bootstrap_server, linger_ms=20, handlers=[audit]) as producer:
        sent = publish(producer, Site(given.seed).events(), given.rate, given.minutes * 60)
    print(f"{sent:,} events sent")


if __name__ == "__main__":
    main()
