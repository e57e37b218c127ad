"""The cluster's topics as groups of the consumer protocol (KIP-848) see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast
from uuid import UUID

from kbroker.cluster.image import MetadataImage

_CACHE_KEY = "group topics"


class ImageTopics:
    """Topic ids, partition counts and names of one metadata image; a `groups.consumer_groups.NamedTopics`."""

    def __init__(self, image: MetadataImage):
        self._topics = image.topics
        self._names = image.names

    def find(self, name: str) -> tuple[bytes, int] | None:
        topic = self._topics.get(name)
        return None if topic is None else (topic.topic_id.bytes, len(topic.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        return self._names.get(UUID(bytes=topic_id))

    def names(self) -> Iterable[str]:
        return self._topics.keys()


def image_topics(image: MetadataImage) -> ImageTopics:
    """The image's topics, always the same object for one image: the same object means that nothing has changed."""
    topics = image.derived.get(_CACHE_KEY)
    if topics is None:
        topics = image.derived.setdefault(_CACHE_KEY, ImageTopics(image))
    return cast(ImageTopics, topics)
