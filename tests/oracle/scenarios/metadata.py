"""Metadata: all topics, some topics, topics that a request makes."""

from __future__ import annotations

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.oracle.scenario import Talk, scenario

METADATA = ApiKey.METADATA
ALL_SINCE = 1  # an empty list is no topic, null is all; version 0 has only the empty list, for all
NAMES_NULL_SINCE = 10
Topic = M.MetadataRequest.MetadataRequestTopic


def named(*names: str, auto: bool = False, **fields: object) -> M.MetadataRequest:
    return M.MetadataRequest(topics=[Topic(name=name) for name in names], allow_auto_topic_creation=auto, **fields)  # type: ignore[arg-type]


def settled(t: Talk, name: str, **fields: object) -> None:
    """Ask for a new topic until its leaders are known: KRaft needs a moment."""
    t.until(lambda: all(one.error_code == 0 for one in t.do(named(name)).topics), name)
    t.ask(named(name, **fields))


@scenario(METADATA)
def topics_by_name(t: Talk) -> None:
    one, two = t.topic("one", 3), t.topic("two")
    t.ask(named(one))
    t.ask(named(two, one))


@scenario(METADATA)
def all_topics(t: Talk) -> None:
    mine = [t.topic("one"), t.topic("two", 2)]

    def only_mine(answer: M.MetadataResponse) -> None:
        answer.topics = [topic for topic in answer.topics if topic.name in mine]

    t.ask(M.MetadataRequest(topics=None if t.version >= ALL_SINCE else []), keep=only_mine)


@scenario(METADATA, since=ALL_SINCE)
def no_topics(t: Talk) -> None:
    t.ask(named())


@scenario(METADATA)
def the_same_topic_twice(t: Talk) -> None:
    topic = t.topic()
    t.ask(named(topic, topic))


@scenario(METADATA, since=4)
def topics_that_are_not_there(t: Talk) -> None:
    t.ask(named(t.name("nowhere"), t.topic()))
    t.ask(named("", "a b", ".", "..", "x" * 249, "x" * 250, "ä", "a/b", "a\0b"))


@scenario(METADATA)
def names_that_cannot_be_made(t: Talk) -> None:
    t.ask(named("a b", "..", "x" * 250, auto=True))


@scenario(METADATA)
def a_topic_made_by_being_asked_for(t: Talk) -> None:
    name = t.name("made")
    t.ask(named(name, auto=True))
    settled(t, name)


@scenario(METADATA)
def two_topics_made_by_being_asked_for(t: Talk) -> None:
    names = t.name("one"), t.name("two")
    t.ask(named(*names, "no way", names[0], auto=True))
    for name in names:
        settled(t, name)


@scenario(METADATA, since=NAMES_NULL_SINCE)
def topics_by_id(t: Talk) -> None:
    topic = t.topic()
    for topic_id in (t.topic_ids[topic], b"\x05" * 16, bytes(16)):
        t.ask(M.MetadataRequest(topics=[Topic(topic_id=topic_id, name=None)], allow_auto_topic_creation=False))
    both = [Topic(topic_id=t.topic_ids[topic], name=None), Topic(topic_id=b"\x05" * 16, name=None)]
    t.ask(M.MetadataRequest(topics=both, allow_auto_topic_creation=True))


@scenario(METADATA, since=NAMES_NULL_SINCE)
def an_id_and_a_name(t: Talk) -> None:
    topic = t.topic()
    t.ask(M.MetadataRequest(topics=[Topic(topic_id=t.topic_ids[topic], name=topic)], allow_auto_topic_creation=False))
    t.ask(M.MetadataRequest(topics=[Topic(topic_id=b"\x05" * 16, name=topic)], allow_auto_topic_creation=False))
    mixed = [Topic(topic_id=t.topic_ids[topic], name=None), Topic(name=topic)]
    t.ask(M.MetadataRequest(topics=mixed, allow_auto_topic_creation=False))


@scenario(METADATA, since=8)
def authorized_operations(t: Talk) -> None:
    topic = t.topic()
    t.ask(named(topic, include_topic_authorized_operations=True))
    t.ask(named(t.name("nowhere"), "a b", include_topic_authorized_operations=True))
    if t.version >= NAMES_NULL_SINCE:
        unknown = [Topic(topic_id=b"\x05" * 16, name=None)]
        t.ask(
            M.MetadataRequest(topics=unknown, allow_auto_topic_creation=False, include_topic_authorized_operations=True)
        )
    if t.version <= 10:
        t.ask(named(topic, include_cluster_authorized_operations=True))


@scenario(METADATA)
def an_internal_topic(t: Talk) -> None:
    t.ask(named("__consumer_offsets"))


@scenario(METADATA, alone=True)
def a_deleted_topic(t: Talk) -> None:
    topic = t.topic()
    t.do(M.DeleteTopicsRequest(topics=[M.DeleteTopicsRequest.DeleteTopicState(name=topic)], timeout_ms=30000))
    t.until(lambda: bool(t.do(named(topic)).topics[0].error_code), f"end of {topic}")
    if t.version >= 4:
        t.ask(named(topic))
    if t.version >= NAMES_NULL_SINCE:
        t.ask(
            M.MetadataRequest(topics=[Topic(topic_id=t.topic_ids[topic], name=None)], allow_auto_topic_creation=False)
        )
