"""Whole frames with their headers, for clients and tests. The broker handles headers in the compiled core."""

from __future__ import annotations

from kbroker.errors import MalformedBytes
from kbroker.protocol.api import ApiKey, request_class, request_header_version, response_class, response_header_version
from kbroker.protocol.messages import Message, RequestHeader, ResponseHeader


def encode_request(
    api_key: ApiKey, version: int, correlation_id: int, client_id: str | None, message: Message
) -> bytes:
    """Return a request as it goes on the wire, its size in front."""
    header = RequestHeader(
        request_api_key=api_key, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    return framed(header.encode(request_header_version(api_key, version)) + message.encode(version))


def encode_response(api_key: ApiKey, version: int, correlation_id: int, message: Message) -> bytes:
    """Return a response as it goes on the wire, its size in front."""
    header = ResponseHeader(correlation_id=correlation_id)
    return framed(header.encode(response_header_version(api_key, version)) + message.encode(version))


def decode_request_header(frame: bytes | memoryview) -> tuple[RequestHeader, int]:
    """Return a request's header and the position where its body starts. `frame` is the request without its size.

    Raises MalformedBytes if the bytes are not a header or the API key is not in `ApiKey`.
    """
    view = memoryview(frame)
    if len(view) < 4:
        raise MalformedBytes("bytes end inside a request header", len(view))
    key = int.from_bytes(view[:2], signed=True)
    version = int.from_bytes(view[2:4], signed=True)
    try:
        header_version = request_header_version(ApiKey(key), version)
    except ValueError:
        raise MalformedBytes(f"no API has key {key}", 0) from None
    return RequestHeader.decode_prefix(view, header_version)


def decode_request(frame: bytes | memoryview) -> tuple[RequestHeader, Message]:
    """Return header and message of a request. `frame` is the request without its size. Raises MalformedBytes."""
    header, position = decode_request_header(frame)
    message = request_class(ApiKey(header.request_api_key))
    return header, message.decode(memoryview(frame)[position:], header.request_api_version)


def decode_response_header(api_key: ApiKey, version: int, frame: bytes | memoryview) -> tuple[int, int]:
    """Return a response's correlation id and the position where its body starts. `frame` is without its size."""
    header, position = ResponseHeader.decode_prefix(frame, response_header_version(api_key, version))
    return header.correlation_id, position


def decode_response(api_key: ApiKey, version: int, frame: bytes | memoryview) -> tuple[int, Message]:
    """Return correlation id and message of a response. `frame` is the response without its size."""
    correlation_id, position = decode_response_header(api_key, version, frame)
    return correlation_id, response_class(api_key).decode(memoryview(frame)[position:], version)


def framed(data: bytes) -> bytes:
    """Return `data` with its size in front, 4 bytes."""
    return len(data).to_bytes(4) + data
