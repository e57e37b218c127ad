"""Routes each API to its handler, and does what handlers have in common: decoding, encoding, errors, threads."""

from __future__ import annotations

import importlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, NamedTuple

from kbroker._core.server.processor import Processor
from kbroker._core.server.request import Request
from kbroker.errors import AnswerTooLarge, ErrorCode, KbrokerError, MalformedBytes
from kbroker.protocol.api import ApiKey, request_class
from kbroker.protocol.error_responses import error_response
from kbroker.protocol.messages import Message
from kbroker.server.handlers.shared.services import Services
from kbroker.server.request_channel import RequestChannel

logger = logging.getLogger(__name__)

Handler = Callable[[Services, Request, Any], Message | None]
"""Returns the response, or None if the handler answers through the request itself, now or later."""


class Lane(Enum):
    """The threads that serve requests which may block, and the queue before them."""

    HANDLERS = auto()
    """The request handlers (num.io.threads)."""
    CONTROL = auto()
    """The controller's requests to a member: one thread, for they are carried out one at a time."""
    CONTROLLER = auto()
    """Other brokers' requests to the controller: one thread, which hands them on and never waits."""


class Route(NamedTuple):
    """How requests of one API are served."""

    module: str
    """The module in `server/handlers`; it has a function `handle`."""
    blocking: bool = True
    """Whether requests go to a request handler thread. Others are served on the processor's thread, which must not
    wait. The module of such an API may have `blocks(services, request, message)`, which returns whether this one
    request has to go to a handler thread after all.
    """
    appends: bool = False
    """Whether the handler appends to a log. Such a request goes to a handler thread while a directory is stalled."""
    lane: Lane = Lane.HANDLERS
    """Who serves the requests that may block. On a broker that is alone the request handlers serve all lanes."""
    decoded: bool = True
    """Whether `handle` gets the decoded message. If not, it gets None and reads `request.body` itself."""


ROUTES: dict[ApiKey, Route] = {
    # Produce and Fetch are served in the compiled core; only those come here that cannot be finished without blocking.
    ApiKey.PRODUCE: Route("produce", blocking=False, appends=True, decoded=False),
    ApiKey.FETCH: Route("fetch", decoded=False),
    ApiKey.LIST_OFFSETS: Route("list_offsets"),
    ApiKey.METADATA: Route("metadata", blocking=False),
    ApiKey.LEADER_AND_ISR: Route("leader_and_isr", lane=Lane.CONTROL),
    ApiKey.STOP_REPLICA: Route("stop_replica", lane=Lane.CONTROL),
    ApiKey.UPDATE_METADATA: Route("update_metadata", lane=Lane.CONTROL),
    ApiKey.CONTROLLED_SHUTDOWN: Route("controlled_shutdown", lane=Lane.CONTROLLER),
    ApiKey.OFFSET_COMMIT: Route("offset_commit", blocking=False, appends=True),
    ApiKey.OFFSET_FETCH: Route("offset_fetch", blocking=False),
    ApiKey.FIND_COORDINATOR: Route("find_coordinator", blocking=False),
    ApiKey.JOIN_GROUP: Route("join_group", blocking=False, appends=True),
    ApiKey.HEARTBEAT: Route("heartbeat", blocking=False),
    ApiKey.LEAVE_GROUP: Route("leave_group", blocking=False, appends=True),
    ApiKey.SYNC_GROUP: Route("sync_group", blocking=False, appends=True),
    ApiKey.DESCRIBE_GROUPS: Route("describe_groups"),
    ApiKey.LIST_GROUPS: Route("list_groups"),
    ApiKey.SASL_HANDSHAKE: Route("sasl_handshake", blocking=False),
    ApiKey.API_VERSIONS: Route("api_versions", blocking=False),
    ApiKey.CREATE_TOPICS: Route("create_topics"),
    ApiKey.DELETE_TOPICS: Route("delete_topics"),
    ApiKey.DELETE_RECORDS: Route("delete_records"),
    ApiKey.INIT_PRODUCER_ID: Route("init_producer_id"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Route("offset_for_leader_epoch"),
    ApiKey.ADD_PARTITIONS_TO_TXN: Route("add_partitions_to_txn", blocking=False, appends=True),
    ApiKey.ADD_OFFSETS_TO_TXN: Route("add_offsets_to_txn", blocking=False, appends=True),
    ApiKey.END_TXN: Route("end_txn", blocking=False, appends=True),
    ApiKey.WRITE_TXN_MARKERS: Route("write_txn_markers"),
    ApiKey.TXN_OFFSET_COMMIT: Route("txn_offset_commit", blocking=False, appends=True),
    ApiKey.DESCRIBE_CONFIGS: Route("describe_configs"),
    ApiKey.ALTER_CONFIGS: Route("alter_configs"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Route("alter_replica_log_dirs"),
    ApiKey.DESCRIBE_LOG_DIRS: Route("describe_log_dirs"),
    ApiKey.SASL_AUTHENTICATE: Route("sasl_authenticate", blocking=False),
    ApiKey.CREATE_PARTITIONS: Route("create_partitions"),
    ApiKey.DELETE_GROUPS: Route("delete_groups"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Route("incremental_alter_configs"),
    ApiKey.ELECT_LEADERS: Route("elect_leaders"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Route("alter_partition_reassignments"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Route("list_partition_reassignments"),
    ApiKey.OFFSET_DELETE: Route("offset_delete"),
    ApiKey.DESCRIBE_QUORUM: Route("describe_quorum", blocking=False),
    ApiKey.ALTER_PARTITION: Route("alter_partition", lane=Lane.CONTROLLER),
    ApiKey.UPDATE_FEATURES: Route("update_features", blocking=False),
    ApiKey.DESCRIBE_CLUSTER: Route("describe_cluster", blocking=False),
    ApiKey.DESCRIBE_PRODUCERS: Route("describe_producers"),
    ApiKey.DESCRIBE_TRANSACTIONS: Route("describe_transactions"),
    ApiKey.LIST_TRANSACTIONS: Route("list_transactions"),
    ApiKey.ALLOCATE_PRODUCER_IDS: Route("allocate_producer_ids", lane=Lane.CONTROLLER),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Route("consumer_group_heartbeat", blocking=False, appends=True),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Route("consumer_group_describe"),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Route("get_telemetry_subscriptions", blocking=False),
    ApiKey.LIST_CONFIG_RESOURCES: Route("list_config_resources"),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Route("describe_topic_partitions", blocking=False),
}


LARGE_REQUEST_SIZE = 16 << 10
"""Bytes. A larger request that has to be decoded goes to a handler thread: decoding must not hold up a processor."""


HUGE_REQUEST_SIZE = 1 << 20
"""Bytes. Larger requests that have to be decoded are served one at a time: each may take seventy times its size."""


class _Served(NamedTuple):
    handle: Handler
    decode: Callable[[memoryview, int], tuple[Message, int]] | None
    route: Route
    blocks: Callable[[Services, Request, Any], bool] | None


class _ServedApis(dict[int, _Served]):
    """Handlers by API key, each imported when its first request comes or by `load_all`.

    So a start does not wait for forty modules.
    """

    def __init__(self, routes: Mapping[ApiKey, Route]):
        super().__init__()
        self._routes = routes

    def __missing__(self, number: int) -> _Served:
        api_key = ApiKey(number)
        route = self._routes[api_key]
        module = importlib.import_module(f"kbroker.server.handlers.{route.module}")
        # Bytes behind the message are ignored, as in Kafka: librdkafka sends some (Metadata 12).
        decode = request_class(api_key).decode_prefix if route.decoded else None
        served = _Served(module.handle, decode, route, getattr(module, "blocks", None))
        self[number] = served
        return served


class Dispatcher:
    """Gives requests to their handlers. `on_request` is called by processors, `serve` by request handlers."""

    def __init__(
        self,
        services: Services,
        channel: RequestChannel,
        routes: Mapping[ApiKey, Route] = ROUTES,
        lanes: Mapping[Lane, RequestChannel] | None = None,
    ):
        """`channel` is that of the request handlers, and of each lane that `lanes` has no channel for."""
        self._services = services
        self._channels = dict.fromkeys(Lane, channel) | dict(lanes or {})
        self._routes = routes
        self._served = _ServedApis(routes)
        self._huge_lock = threading.Lock()  # guards the two below; taken alone
        self._huge: deque[Request] = deque()
        self._serves_huge = False

    def load_all(self) -> None:
        """Import the handlers that no request has needed yet; after that no module is read from disk any more.

        Handlers of requests between brokers are left out on a broker that is alone, to which nobody sends any.
        """
        handlers = self._channels[Lane.HANDLERS]
        for api_key, route in self._routes.items():
            if route.lane is Lane.HANDLERS or self._channels[route.lane] is not handlers:
                self._served[api_key]

    def on_request(self, request: Request, processor: Processor) -> bool:
        """Serve the request or put it into the channel. Called on the processor's thread.

        Returns False if the channel is full: the request is not taken, and the processor is resumed when there is room.
        """
        served = self._served[request.api_key]
        must_wait = (
            served.route.blocking
            or (served.route.appends and self._services.logs.is_stalled)
            or (served.decode is not None and len(request.body) > LARGE_REQUEST_SIZE)
        )
        if must_wait or not self._serve(request, served, may_block=False):
            return self._channels[served.route.lane].enqueue(request, processor)
        return True

    def serve(self, request: Request) -> None:
        """Decode, handle and answer a request. Never raises."""
        served = self._served[request.api_key]
        if served.decode is None or len(request.body) <= HUGE_REQUEST_SIZE:
            self._serve(request, served, may_block=True)
            return
        with self._huge_lock:
            self._huge.append(request)
            if self._serves_huge:
                return  # the thread that serves huge requests takes this one next; no thread waits
            self._serves_huge = True
        del request  # not kept while others are served
        while (huge := self._next_huge()) is not None:
            self._serve(huge, self._served[huge.api_key], may_block=True)
            del huge

    def serve_in_turn(self, request: Request) -> None:
        """Do what `serve` does, for the one thread of a lane: huge requests of other APIs do not hold it up."""
        self._serve(request, self._served[request.api_key], may_block=True)

    def _next_huge(self) -> Request | None:
        with self._huge_lock:
            self._serves_huge = bool(self._huge)
            return self._huge.popleft() if self._huge else None

    def _serve(self, request: Request, served: _Served, *, may_block: bool) -> bool:
        """Serve the request. Returns False, with nothing done, if the request would block and may not."""
        message: Message | None = None
        try:
            if served.decode is not None:
                message, _ = served.decode(request.body, request.api_version)
            if not may_block and served.blocks is not None and served.blocks(self._services, request, message):
                return False
            response = served.handle(self._services, request, message)
            if response is not None:
                error_code = getattr(response, "error_code", ErrorCode.NONE)
                if error_code:
                    request.count_error(error_code)
                request.respond_with(response)
        except Exception as error:
            self._fail(request, message, error)
        return True

    def _fail(self, request: Request, message: Message | None, error: Exception) -> None:
        """Answer with the API's error response, or close the connection.

        It is closed if the request does not parse, if the API has no response, or if answering fails too.
        """
        try:
            if message is None:
                if not isinstance(error, MalformedBytes):
                    logger.error("%r failed", request, exc_info=error)
                request.close(f"a request that does not parse: {error}")
                return
            if isinstance(error, KbrokerError):
                code = error.code
            else:
                code = ErrorCode.UNKNOWN_SERVER_ERROR
                logger.error("%r failed", request, exc_info=error)
            response = error_response(ApiKey(request.api_key), request.api_version, message, code, str(error))
            if response is None:
                request.count_error(code)
                request.close(f"a request without a response failed: {error}")
            else:
                request.count_error(code)
                request.respond_with(response)
        except AnswerTooLarge as again:
            request.close(str(again))
        except Exception:
            logger.exception("%r failed, and so did answering it", request)
            try:
                request.close("an error of this broker")
            except RuntimeError:
                pass  # answered by the handler before it failed
