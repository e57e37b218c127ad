"""A schema registry in this process. It has the part of Confluent's HTTP API that readers use."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote


class SchemaRegistryServer:
    """A registry's server.

    `register` adds a schema, `asked` has the paths of all requests, `login` is required if given.
    """

    def __init__(self, login: str = "") -> None:
        self.asked: list[str] = []
        self.failures = 0  #: so many requests are answered with 503 before the next is answered well
        self._login = base64.b64encode(login.encode()).decode() if login else ""
        self._by_id: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                status, answer = registry._answer(self.path, self.headers.get("Authorization", ""))
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def register(
        self, subject: str, schema: Any, kind: str = "AVRO", references: tuple[tuple[str, str], ...] = ()
    ) -> int:
        """Register a schema and return its id. `references` are names and subjects, whose latest versions are taken."""
        schema_id = len(self._by_id) + 1
        found = {"schema": schema if isinstance(schema, str) else json.dumps(schema)}
        if kind != "AVRO":
            found["schemaType"] = kind
        if references:
            found["references"] = [
                {"name": name, "subject": of, "version": len(self._subjects[of])} for name, of in references
            ]  # type: ignore[assignment]
        self._by_id[schema_id] = found
        self._subjects.setdefault(subject, []).append(schema_id)
        return schema_id

    def _answer(self, path: str, authorization: str) -> tuple[int, Any]:
        if self.failures:
            self.failures -= 1
            return 503, {}
        if self._login and authorization != f"Basic {self._login}":
            return 401, {"error_code": 401, "message": "Unauthorized"}
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts[0] not in ("schemas", "subjects"):
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        if parts[:2] == ["schemas", "ids"] and int(parts[2]) in self._by_id:
            return 200, self._by_id[int(parts[2])]
        if parts[0] == "subjects" and parts[1] in self._subjects:
            versions = self._subjects[parts[1]]
            version = len(versions) if parts[3] == "latest" else int(parts[3])
            if version <= len(versions):
                schema_id = versions[version - 1]
                return 200, {"subject": parts[1], "version": version, "id": schema_id, **self._by_id[schema_id]}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
