"""The cluster's topics as groups of the consumer protocol see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast
from uuid import UUID

from kbroker.cluster.image import MetadataImage

_PREPARED = "group topics"


class ImageTopics:
    """Ids, partition counts and names of one image (`groups.consumer_groups.NamedTopics`)."""

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
    """One object for one image, so that who sees the same object knows that nothing has changed."""
    topics = image.prepared.get(_PREPARED)
    if topics is None:
        topics = image.prepared.setdefault(_PREPARED, ImageTopics(image))
    return cast(ImageTopics, topics)
