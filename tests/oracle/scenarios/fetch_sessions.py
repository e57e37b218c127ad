"""Fetch sessions (KIP-227): what is remembered, what is sent again, what is refused."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.oracle.scenario import Talk, scenario
from tests.oracle.scenarios.fetch import BY_ID, of
from tests.oracle.scenarios.requests import FetchTopic, fetch, fetch_partition, records

FETCH = ApiKey.FETCH
SINCE = 7


def forgotten(t: Talk, topic: str, partitions: Iterable[int]) -> M.FetchRequest.ForgottenTopic:
    return M.FetchRequest.ForgottenTopic(
        topic=topic, topic_id=t.topic_ids.get(topic, b"\x07" * 16), partitions=list(partitions)
    )


def opened(t: Talk, topic: str, partitions: Iterable[int] = (0,)) -> int:
    """Open a new session and return its id."""
    answer = t.ask(fetch([of(t, topic, map(fetch_partition, partitions))], session_epoch=0))
    session_id: int = answer.session_id
    return session_id


def again(t: Talk, session_id: int, epoch: int, topics: Iterable[FetchTopic] = (), **fields: object) -> None:
    t.ask(fetch(list(topics), session_id=session_id, session_epoch=epoch, **fields))


@scenario(FETCH, since=SINCE)
def only_what_changed_is_told(t: Talk) -> None:
    topic = t.topic(partitions=3)
    t.produce(topic, records(), partition=1)
    session = opened(t, topic, range(3))
    again(t, session, 1, [of(t, topic, [fetch_partition(1, offset=3)])])
    again(t, session, 2)
    t.produce(topic, records(), partition=2)
    again(t, session, 3)
    again(t, session, 4, [of(t, topic, [fetch_partition(2, offset=3)])])


@scenario(FETCH, since=SINCE)
def partitions_come_and_go(t: Talk) -> None:
    topic = t.topic(partitions=3)
    session = opened(t, topic)
    again(t, session, 1, [of(t, topic, [fetch_partition(1), fetch_partition(2)])])
    for partition in range(3):
        t.produce(topic, records(), partition=partition)
    again(t, session, 2, forgotten_topics_data=[forgotten(t, topic, [1, 9])])
    again(t, session, 3)
    again(t, session, 4, forgotten_topics_data=[forgotten(t, topic, [0, 2]), forgotten(t, t.name("nowhere"), [0])])


@scenario(FETCH, since=SINCE)
def wrong_epochs(t: Talk) -> None:
    topic = t.topic()
    session = opened(t, topic)
    for epoch in (2, 1, 1, 3, 2):
        again(t, session, epoch)


@scenario(FETCH, since=SINCE)
def sessions_that_are_not_there(t: Talk) -> None:
    topic = t.topic()
    for session, epoch in ((12345, 1), (12345, 0), (12345, -1), (0, 1), (-1, 1), (-5, 7)):
        t.ask(fetch([of(t, topic, [fetch_partition()])], session_id=session, session_epoch=epoch))


@scenario(FETCH, since=SINCE)
def epochs_below_none(t: Talk) -> None:
    t.ask(fetch([of(t, t.topic(), [fetch_partition()])], session_id=0, session_epoch=-2))


@scenario(FETCH, since=SINCE)
def without_a_session(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records())
    for _ in range(2):
        t.ask(fetch([of(t, topic, [fetch_partition()])], session_id=0, session_epoch=-1))


@scenario(FETCH, since=SINCE)
def closing(t: Talk) -> None:
    topic = t.topic()
    session = opened(t, topic)
    again(t, session, -1)
    again(t, session, 1)
    session = opened(t, topic)
    again(t, session, 0, [of(t, topic, [fetch_partition()])])
    again(t, session, 1)


@scenario(FETCH, since=SINCE)
def a_session_of_nothing(t: Talk) -> None:
    """A full fetch without partitions opens a session too."""
    t.ask(fetch([], session_epoch=0))


@scenario(FETCH, since=SINCE)
def errors_stay_in_a_session(t: Talk) -> None:
    topic = t.topic()
    session = opened(t, topic, (0, 5))
    again(t, session, 1)
    again(t, session, 2)


@scenario(FETCH, since=SINCE)
def topics_that_appear_and_disappear(t: Talk) -> None:
    topic = t.topic()
    later = t.name("later")
    answer = t.ask(fetch([of(t, topic, [fetch_partition()]), of(t, later, [fetch_partition()])], session_epoch=0))
    session = answer.session_id
    again(t, session, 1)
    if t.version < BY_ID:
        t.topic("later")
        t.produce(later, records())
        again(t, session, 2)


@scenario(FETCH, since=SINCE, alone=True)
def a_deleted_topic_in_a_session(t: Talk) -> None:
    topic, other = t.topic(), t.topic("other")
    answer = t.ask(fetch([of(t, topic, [fetch_partition()]), of(t, other, [fetch_partition()])], session_epoch=0))
    t.do(M.DeleteTopicsRequest(topics=[M.DeleteTopicsRequest.DeleteTopicState(name=topic)], timeout_ms=30000))
    gone_at_once(t, topic)
    again(t, answer.session_id, 1)
    again(t, answer.session_id, 2)


def gone_at_once(t: Talk, topic: str) -> None:
    """Wait until the broker does not know the topic any more: KRaft says so before its log is gone."""
    asked = M.MetadataRequest(
        topics=[M.MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    t.until(lambda: bool(t.do(asked).topics[0].error_code), f"end of {topic}")


@scenario(FETCH, since=BY_ID, alone=True)
def a_topic_made_again_has_another_id(t: Talk) -> None:
    topic = t.topic()
    session = opened(t, topic)
    old = of(t, topic, [fetch_partition()])
    t.do(M.DeleteTopicsRequest(topics=[M.DeleteTopicsRequest.DeleteTopicState(name=topic)], timeout_ms=30000))
    gone_at_once(t, topic)
    t.topic()
    t.produce(topic, records())
    again(t, session, 1)
    again(t, session, 2, [of(t, topic, [fetch_partition()])])
    t.ask(fetch([old]))


@scenario(FETCH, only=BY_ID)
def names_and_ids_are_not_mixed(t: Talk) -> None:
    """A session of names cannot be continued with ids, nor the other way round."""
    topic = t.topic()
    by_name = t.ask(fetch([of(t, topic, [fetch_partition()])], session_epoch=0), version=12)
    again(t, by_name.session_id, 1)
    by_id = t.ask(fetch([of(t, topic, [fetch_partition()])], session_epoch=0))
    t.ask(fetch([], session_id=by_id.session_id, session_epoch=1), version=12)


@scenario(FETCH, since=SINCE)
def a_long_poll_in_a_session(t: Talk) -> None:
    topic = t.topic(partitions=2)
    session = opened(t, topic, (0, 1))
    t.ask(fetch([], session_id=session, session_epoch=1, max_wait_ms=120), after_ms=120)
    waiting = t.send(fetch([], session_id=session, session_epoch=2, max_wait_ms=20000))
    t.still_waits(waiting, 30)
    t.produce(topic, records(), partition=1)
    t.receive(waiting)


@scenario(FETCH, since=SINCE)
def a_session_belongs_to_nobody(t: Talk) -> None:
    """Another connection may go on with it."""
    topic = t.topic()
    session = opened(t, topic)
    t.ask(fetch([], session_id=session, session_epoch=1), on="other")
    again(t, session, 2)


@scenario(FETCH, since=SINCE)
def high_watermark_changes_are_told(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records())
    session = opened(t, topic)
    again(t, session, 1, [of(t, topic, [fetch_partition(0, offset=3)])])
    again(t, session, 2)
    cut = M.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=2)
    t.do(
        M.DeleteRecordsRequest(
            topics=[M.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[cut])], timeout_ms=30000
        )
    )
    again(t, session, 3)
    again(t, session, 4)


@scenario(FETCH, since=SINCE)
def the_first_partitions_change_places(t: Talk) -> None:
    """Partitions that were sent go to the end, so that a small limit starves none."""
    topic = t.topic(partitions=3)
    for partition in range(3):
        t.produce(topic, records(1, 100), records(1, 100), partition=partition)
    answer = t.ask(fetch([of(t, topic, map(fetch_partition, range(3)))], session_epoch=0, max_bytes=180))
    for epoch in (1, 2, 3):
        again(t, answer.session_id, epoch, max_bytes=180)
