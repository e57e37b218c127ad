"""The mailbox between threads: order, at most once, no lost wake-up."""

from __future__ import annotations

import threading

from kbroker._core.base.mailbox import Mailbox

GENEROUS_MS = 20_000


def test_mail_comes_in_the_order_of_posting() -> None:
    box = Mailbox(10)
    box.post(7, 3, 4)
    assert box.take(0) == [7, 0, 3, 6]


def test_mail_that_is_posted_again_before_it_is_taken_comes_once() -> None:
    box = Mailbox(2)
    box.post(1, 0, 5)
    assert box.is_posted(1)
    assert box.take(0) == [1]
    assert not box.is_posted(1)
    box.post(1, 0, 1)
    assert box.take(0) == [1]


def test_taking_from_an_empty_mailbox_ends_at_the_timeout() -> None:
    assert Mailbox(1).take(1) == []


def test_no_wake_up_is_lost_between_two_that_wait_for_each_other() -> None:
    """Each posts once and sleeps until the other has answered: every single wake-up is needed."""
    ping, pong, rounds = Mailbox(1), Mailbox(1), 30_000
    came: list[int] = []
    other = threading.Thread(target=lambda: came.append(pong.answer(ping, rounds, GENEROUS_MS)))
    other.start()
    pong.post(0, 0, 1)
    came.append(ping.answer(pong, rounds, GENEROUS_MS))
    other.join()
    assert came == [rounds, rounds]


def test_every_mail_of_many_posters_arrives() -> None:
    """What was posted after the owner took it out last is in the box, whoever slept or raced."""
    posters, each = 4, 8
    box = Mailbox(posters * each + 1)
    last = posters * each
    seen = 0

    def poster(number: int) -> None:
        for turn in range(2000):
            box.post(number * each + turn % each, 0, 50)

    def finish() -> None:
        for thread in threads:
            thread.join()
        box.post(last, 0, 1)

    threads = [threading.Thread(target=poster, args=(number,)) for number in range(posters)]
    for thread in [*threads, finisher := threading.Thread(target=finish)]:
        thread.start()
    done = False
    while not done:
        mails = box.take(GENEROUS_MS)
        assert mails, "the owner was not woken up"
        assert len(set(mails)) == len(mails)
        seen += len(mails)
        done = last in mails
    finisher.join()
    assert seen > posters * each
    assert not any(box.is_posted(number) for number in range(box.count))
