"""An OpenTelemetry collector that keeps the spans that it is sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Collector:
    """`spans` are those that were taken. The first `refuse` requests are answered with 503."""

    def __init__(self, refuse: int) -> None:
        self.spans: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str | None]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                collector.asked.append((self.path, self.headers["x-key"]))
                taken = len(collector.asked) > refuse
                if taken:
                    (resource,) = body["resourceSpans"]
                    collector.spans += resource["scopeSpans"][0]["spans"]
                self.send_response(200 if taken else 503)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)

    def of(self, job: str) -> dict[str, dict[str, Any]]:
        """The spans of a job by name; each has its attributes in `is`."""
        found = {}
        for span in self.spans:
            values = {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}
            if values["kant.job.id"] == job:
                assert span["name"] not in found, "each is sent once"
                found[span["name"]] = span | {"is": values}
        return found


@contextmanager
def collecting(refuse: int = 0) -> Iterator[Collector]:
    collector = Collector(refuse)
    thread = threading.Thread(target=collector.server.serve_forever, daemon=True)
    thread.start()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()
    thread.join()
