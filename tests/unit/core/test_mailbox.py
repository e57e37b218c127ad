"""The mailbox between threads: order, at most once, no lost wake-up."""

from __future__ import annotations

import threading

from kbroker._core.mailbox import Mailbox

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


def test_no_wake_up_is_lost_between_a_sleeping_owner_and_one_poster() -> None:
    """A poster that sends one mail and waits until it was taken: every single wake-up is needed."""
    box, taken = Mailbox(1), threading.Semaphore(0)
    rounds = 3000

    def poster() -> None:
        for _ in range(rounds):
            box.post(0, 0, 1)
            taken.acquire()

    thread = threading.Thread(target=poster)
    thread.start()
    for number in range(rounds):
        assert box.take(GENEROUS_MS) == [0], f"round {number} was not woken up"
        taken.release()
    thread.join()


def test_every_mail_of_many_posters_arrives() -> None:
    """After the last post of each thread its mails have been seen at least once more, whoever slept or raced."""
    posters, each, rounds = 4, 8, 20_000
    box = Mailbox(posters * each + 1)
    last = posters * each
    seen = 0

    def poster(first: int) -> None:
        # Posts only its own mails, over and over, racing with the owner that takes them out.
        for _ in range(20):
            box.post(first, posters, rounds // 20 // each * each)

    threads = [threading.Thread(target=poster, args=(number,)) for number in range(posters)]
    for thread in threads:
        thread.start()

    def finish() -> None:
        for thread in threads:
            thread.join()
        box.post(last, 0, 1)

    finisher = threading.Thread(target=finish)
    finisher.start()
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
