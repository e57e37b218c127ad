"""ApiVersions, SASL on a listener without it, and requests that neither broker serves."""

from __future__ import annotations

from typing import Any

from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey, is_flexible
from tests.kit.cluster.apis import BETWEEN_BROKERS
from tests.oracle.scenario import KEYS, Talk, scenario
from tests.oracle.scenarios.requests import NO_TEXTS

VERSIONS = ApiKey.API_VERSIONS


def only_served(answer: Any) -> None:
    """Keep, in an answer to ApiVersions, only the APIs that both brokers can serve."""
    if isinstance(answer, M.ApiVersionsResponse):
        both = [api_key for api_key in SERVED if api_key not in BETWEEN_BROKERS]
        answer.api_keys = [one for one in answer.api_keys if one.api_key in both]


@scenario(VERSIONS)
def what_is_served(t: Talk) -> None:
    t.ask(M.ApiVersionsRequest(client_software_name="oracle", client_software_version="1.0"), keep=only_served)


@scenario(VERSIONS, since=3)
def names_of_software(t: Talk) -> None:
    for name, version in (
        ("", "1"),
        ("a", ""),
        ("a b", "1"),
        ("-a", "1"),
        ("a", "1 0"),
        ("a" * 5000, "1"),
        ("a-b.c", "1.0-x"),
    ):
        t.ask(M.ApiVersionsRequest(client_software_name=name, client_software_version=version), keep=only_served)


@scenario(VERSIONS, only=0)
def versions_nobody_has(t: Talk) -> None:
    """KIP-511: an unserved version of ApiVersions is answered in version 0."""
    for version in (5, 99, 32767):
        t.ask_bytes(VERSIONS, version, b"", flexible=False)
        t.ask_bytes(VERSIONS, version, b"\x02a\x02b\x00", flexible=True)
    t.ask_bytes(VERSIONS, -1, b"", flexible=False)


@scenario(VERSIONS, only=0)
def several_times_on_a_connection(t: Talk) -> None:
    for version in (0, 3, 1):
        t.ask(
            M.ApiVersionsRequest(client_software_name="oracle", client_software_version="1.0"),
            version=version,
            keep=only_served,
        )


@scenario(VERSIONS, only=0)
def apis_nobody_has(t: Talk) -> None:
    for key in (-1, 500, 32767, -32768):
        t.ask_bytes(key, 0, b"")


@scenario(VERSIONS, only=0)
def versions_that_no_api_has(t: Talk) -> None:
    """An unserved version of any other API closes the connection."""
    for key, served in SERVED.items():
        if key != VERSIONS:
            t.ask_bytes(key, served.max + 1, b"", flexible=True)
            t.ask_bytes(key, -1, b"", flexible=False)


@scenario(VERSIONS, only=0)
def frames_that_are_none(t: Talk) -> None:
    for frame in (
        bytes(4),
        b"\0\0\0\x01\0",
        b"\0\0\0\x04\0\x12\0\0",
        b"\xff\xff\xff\xff",
        b"\x80\0\0\0",
        b"\x7f\xff\xff\xff\0\x12\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\0\x05",
        b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xfe",
        b"\0\0\0\x0d\0\x12\0\x03\0\0\0\x07\0\x01a\x00\xff",
    ):
        t.ask_raw(frame)


@scenario(VERSIONS, only=0)
def requests_cut_short(t: Talk) -> None:
    for key in (ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.CREATE_TOPICS):
        for body in (b"", b"\0", b"\x7f\xff\xff\xff", b"\xff" * 40):
            t.ask_bytes(key, SERVED[key].max, body, flexible=True)


@scenario(VERSIONS, only=0)
def no_client_id(t: Talk) -> None:
    """A null client id is treated as any other."""
    t.ask_raw(b"\0\0\0\x0a\0\x11\0\0\0\0\0\x07\xff\xff\0\0")
    t.ask_raw(b"\0\0\0\x0c\0\x11\0\0\0\0\0\x07\xff\xff\0\0")


@scenario(ApiKey.SASL_HANDSHAKE)
def sasl_on_a_plain_listener(t: Talk) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "", "NO SUCH"):
        t.ask(M.SaslHandshakeRequest(mechanism=mechanism))


@scenario(ApiKey.SASL_AUTHENTICATE)
def authentication_on_a_plain_listener(t: Talk) -> None:
    for data in (b"", b"\0user\0secret"):
        t.ask(M.SaslAuthenticateRequest(auth_bytes=data))


@scenario(VERSIONS, only=0)
def bytes_behind_a_request(t: Talk) -> None:
    for message, version in (
        (M.MetadataRequest(topics=[]), 4),
        (M.MetadataRequest(topics=[]), 12),
        (M.HeartbeatRequest(group_id=t.name("g"), generation_id=1, member_id="x"), 0),
        (M.ProduceRequest(acks=1, timeout_ms=100, topic_data=[]), 9),
        (M.FetchRequest(max_wait_ms=0, min_bytes=0, topics=[]), 4),
        (M.ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3),
    ):
        api = KEYS[type(message).__name__]
        for behind in (b"\0", b"\xff" * 50):
            t.ask_bytes(
                api, version, message.encode(version) + behind, flexible=is_flexible(api, version), keep=only_served
            )


@scenario(VERSIONS, only=0)
def texts_that_are_none(t: Talk) -> None:
    """Bytes that are not UTF-8 stand where a name should be."""
    request = M.MetadataRequest(
        topics=[M.MetadataRequest.MetadataRequestTopic(name="xx")], allow_auto_topic_creation=False
    )
    for version in (4, 12):
        for broken in NO_TEXTS:
            t.ask_bytes(
                ApiKey.METADATA,
                version,
                request.encode(version).replace(b"xx", broken),
                flexible=is_flexible(ApiKey.METADATA, version),
            )


@scenario(VERSIONS, only=0)
def tagged_fields_nobody_knows(t: Talk) -> None:
    """KIP-482: unknown tagged fields are skipped. A tag that comes twice or out of order is not checked."""
    body = M.MetadataRequest(topics=[]).encode(12)
    for tags in (
        b"\x01\x07\x02ab",
        b"\x02\x05\x01a\x07\x00",
        b"\x02\x07\x00\x05\x00",
        b"\x02\x05\x00\x05\x00",
        b"\x01\x05\x7f",
        b"\xff",
    ):
        t.ask_bytes(ApiKey.METADATA, 12, body[:-1] + tags, flexible=True)


@scenario(VERSIONS, only=0)
def counts_that_promise_too_much(t: Talk) -> None:
    """A count alone makes no broker allocate memory."""
    for body in (b"\x7f\xff\xff\xff", b"\x00\x10\x00\x00", b"\x80\x00\x00\x00", b"\xff\xff\xff\xfe"):
        t.ask_bytes(ApiKey.METADATA, 1, body, flexible=False)
