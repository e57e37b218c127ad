"""What is stretched is what the broker would read, with one field of the length that was asked for."""

from __future__ import annotations

import pytest

from kbroker.errors import BadInput
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey, request_class
from kbroker.protocol.headers import decode_request, encode_request
from tests.fuzz.stretching import MOST_ELEMENTS, choice, filled, places_of, stretched


@pytest.mark.parametrize("api", SERVED, ids=lambda api: api.label)
def test_every_text_array_and_all_bytes_of_a_request_can_be_long(api: ApiKey) -> None:
    for version in range(SERVED[api].min, SERVED[api].max + 1):
        whole = filled(request_class(api), version)
        for which in range(len(list(places_of(M.RequestHeader(request_api_key=api), whole, version)))):
            for length in (255, 32_767):
                frame = encode_request(api, version, choice(which, length), "me", whole)[4:]
                header, message = decode_request(stretched(frame))
                place = list(places_of(header, message, version))[which]
                expected = min(length, MOST_ELEMENTS) if place.kind == "array" else length
                assert len(place.value) == expected, (version, which, place.kind)


def test_a_length_that_cannot_be_read_is_still_there() -> None:
    request = M.FetchRequest(topics=[M.FetchRequest.FetchTopic(topic="t")])
    frame = encode_request(ApiKey.FETCH, 12, choice(2, 65_535), "me", request)[4:]
    made = stretched(frame)
    assert b"\x80\x80\x04" + b"t" * 65_535 in made  # 65,536 as a varint: one more than it is long
    with pytest.raises(BadInput):
        decode_request(made)


def test_what_is_no_request_stays_as_it_is() -> None:
    for frame in (b"", b"\0\1", b"\xff" * 40):
        assert stretched(frame) == frame
