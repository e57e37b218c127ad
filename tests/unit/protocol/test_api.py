"""The API table and the headers, against the schema data and against other projects."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from kio.index import load_payload_module
from kio.static.constants import EntityType

from kbroker.errors import MalformedBytes
from kbroker.protocol import messages as M
from kbroker.protocol.api import (
    SERVED,
    ApiKey,
    is_served,
    request_class,
    request_header_version,
    response_class,
    response_header_version,
)
from kbroker.protocol.headers import (
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)


def test_every_api_key_has_its_messages() -> None:
    for api_key in ApiKey:
        assert api_key == request_class(api_key).API_KEY
        assert api_key == response_class(api_key).API_KEY
    assert ApiKey.OFFSET_FOR_LEADER_EPOCH.label == "OffsetForLeaderEpoch"


def test_what_is_served_is_in_the_schema_data() -> None:
    for api_key, served in SERVED.items():
        for cls in (request_class(api_key), response_class(api_key)):
            assert cls.MIN_VERSION <= served.min <= served.max == cls.MAX_VERSION
            assert served.flexible_from == cls.FLEXIBLE_FROM


def test_a_version_outside_the_range_is_not_served() -> None:
    assert is_served(1, 0)
    assert is_served(1, 17)
    assert not is_served(1, 18)
    assert not is_served(1, -1)
    assert not is_served(52, 0)
    assert not is_served(-1, 0)


@pytest.mark.parametrize("api_key", SERVED, ids=lambda key: key.label)
def test_header_versions_are_those_of_kio(api_key: ApiKey) -> None:
    for version in range(SERVED[api_key].min, SERVED[api_key].max + 1):
        for kind, ours in (
            (EntityType.request, request_header_version(api_key, version)),
            (EntityType.response, response_header_version(api_key, version)),
        ):
            try:
                module = load_payload_module(api_key, version, kind)
            except Exception:
                continue  # kio starts where Kafka 4 does
            entity: Any = getattr(module, f"{api_key.label}{kind.name.capitalize()}")
            assert f".v{ours}." in entity.__header_schema__.__module__


def test_the_quirks_of_headers() -> None:
    assert request_header_version(ApiKey.CONTROLLED_SHUTDOWN, 0) == 0
    assert request_header_version(ApiKey.API_VERSIONS, 3) == 2
    assert response_header_version(ApiKey.API_VERSIONS, 4) == 0


@pytest.mark.parametrize("api_key", SERVED, ids=lambda key: key.label)
def test_frames_round_trip_in_every_version(api_key: ApiKey) -> None:
    for version in range(SERVED[api_key].min, SERVED[api_key].max + 1):
        request, response = request_class(api_key)(), response_class(api_key)()
        frame = encode_request(api_key, version, 77, "me", request)
        assert int.from_bytes(frame[:4]) == len(frame) - 4
        header, read = decode_request(frame[4:])
        client_id = "me" if request_header_version(api_key, version) else ""
        assert (header.correlation_id, header.client_id, read) == (77, client_id, request)
        frame = encode_response(api_key, version, -5, response)
        assert decode_response(api_key, version, frame[4:]) == (-5, response)


@pytest.mark.parametrize(("api_key", "version"), [(ApiKey.API_VERSIONS, 3), (ApiKey.METADATA, 8), (ApiKey.METADATA, 9)])
def test_a_request_frame_is_that_of_kafka_python(api_key: ApiKey, version: int) -> None:
    area = importlib.import_module("kafka.protocol.metadata")
    theirs = getattr(area, f"{api_key.label}Request")(version=version)
    ours = request_class(api_key).decode(theirs.encode(), version)
    theirs.with_header(correlation_id=9, client_id="me")
    assert encode_request(api_key, version, 9, "me", ours) == theirs.encode(header=True, framed=True)


def test_a_request_header_that_cannot_be_read_is_refused() -> None:
    frame = encode_request(ApiKey.METADATA, 12, 1, "me", M.MetadataRequest())[4:]
    assert decode_request_header(frame)[1] == 13
    for data in (b"", frame[:3], frame[:9], b"\x7f\xff" + frame[2:], b"\xff\xff" + frame[2:]):
        with pytest.raises(MalformedBytes):
            decode_request_header(data)


def test_a_null_client_id_is_allowed() -> None:
    frame = encode_request(ApiKey.METADATA, 12, 1, None, M.MetadataRequest())
    assert decode_request(frame[4:])[0].client_id is None
