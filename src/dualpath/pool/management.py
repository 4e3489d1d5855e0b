"""The management port of a node: small HTTP, apart from the data port, for people and scrapers.

    GET /healthz    200 "ok" while the node serves
    GET /stats      all counters and gauges, JSON
    GET /metrics    the same and the latency histograms, Prometheus text

Open on loopback. Elsewhere the node's shared key is required: `Authorization: Bearer KEY`. At most `MOST_CONNECTIONS`
are answered at once, each by a thread: one more, and the oldest makes way, so that who sends nothing, or sends slowly,
costs the node nothing that its data port needs, and keeps nobody out.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any

from dualpath.errors import UsageError
from dualpath.pool.meter import BUCKETS_S, Meter
from dualpath.transport.dial import is_loopback
from dualpath.transport.tcp import endpoint

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_PREFIX = "dualpath_pool_"
_REQUEST_TIMEOUT_S = 10.0
MOST_CONNECTIONS = 16

_log = logging.getLogger(__name__)


class Management:
    """Serves `stats` and `meter` over HTTP in threads of its own, from construction to `close`."""

    def __init__(
        self, stats: Callable[[], dict[str, float]], meter: Meter, host: str, port: int, *, key: bytes | None = None
    ) -> None:
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(stats, meter))
        pages: dict[str, Callable[[], tuple[str, bytes]]] = {
            "/healthz": lambda: ("text/plain; charset=utf-8", b"ok\n"),
            "/stats": lambda: ("application/json", json.dumps(stats()).encode() + b"\n"),
            "/metrics": lambda: ("text/plain; version=0.0.4; charset=utf-8", generate_latest(registry)),
        }
        token = None if is_loopback(host) else key
        if token is None and not is_loopback(host):
            raise UsageError(f"the management port would be open to anyone at {host}", hint="set a key")
        try:
            self._server = _Server(host, port, _page_server(pages, token))
        except OSError as error:
            where = endpoint(host, port)
            raise UsageError(f"cannot listen on {where} for management: {error}", hint="use port 0") from error
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="management", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{endpoint(self.host, self.port)}"

    def close(self) -> None:
        """Stop answering. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, pages: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._lock = threading.Lock()
        self._open: dict[Any, None] = {}  # connections, oldest first
        super().__init__((host, port), pages)

    def server_bind(self) -> None:
        """Bind, without asking the resolver for this host's name, which may take long and is not needed."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. When there are no descriptors, not again at once."""
        try:
            return super().get_request()
        except OSError as error:
            _log.warning("management: accept failed: %s", error)
            time.sleep(0.05)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own."""
        with self._lock:
            if len(self._open) >= MOST_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close; under the lock, so that nobody ends another connection in its stead."""
        with self._lock:
            self._open.pop(request, None)
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error of this node's."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            _log.debug("management: %s: %s", client_address, error)
        else:
            _log.error("management: a request failed", exc_info=error)


def _page_server(
    pages: dict[str, Callable[[], tuple[str, bytes]]], token: bytes | None
) -> type[BaseHTTPRequestHandler]:
    class Pages(BaseHTTPRequestHandler):
        timeout = _REQUEST_TIMEOUT_S
        server_version = "dualpath"
        sys_version = ""

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            if not self._allowed():
                self._send(401, "text/plain; charset=utf-8", b"send the key: Authorization: Bearer KEY\n")
            elif page is None:
                self._send(404, "text/plain; charset=utf-8", b"there is /healthz, /stats and /metrics\n")
            else:
                self._send(200, *page())

        def _allowed(self) -> bool:
            given = self.headers.get("Authorization", "").removeprefix("Bearer ").encode("latin-1")  # as it was decoded
            return token is None or hmac.compare_digest(given, token)

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not logged: scrapers would fill the log."""

    return Pages


class _Collector:
    """Turns a node's numbers into Prometheus metrics when it is scraped."""

    def __init__(self, stats: Callable[[], dict[str, float]], meter: Meter) -> None:
        self._stats = stats
        self._meter = meter

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for name, value in self._stats().items():
            if name.endswith("_total"):
                plain = name.removesuffix("_total")
                yield CounterMetricFamily(_PREFIX + plain, plain.replace("_", " ") + ", since start", value=value)
            else:
                yield GaugeMetricFamily(_PREFIX + name, name.replace("_", " ") + ", now", value=value)
        text = "time to answer a request, payload excluded"
        seconds = HistogramMetricFamily(_PREFIX + "request_seconds", text, labels=["request"])
        for name, operation in self._meter.operations().items():
            total, buckets = 0, []
            for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], operation.buckets, strict=True):
                total += count
                buckets.append((bound, float(total)))
            seconds.add_metric([name], buckets, operation.seconds)
        yield seconds
