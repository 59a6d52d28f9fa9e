"""The metrics of an endpoint picker for Prometheus: its decisions, under the same names as the router's metrics."""

from __future__ import annotations

from aiohttp import web

from kant.gateway.dispatch import Dispatcher
from kant.gateway.meters import Meters
from kant.model.errors import InputError

TEXT = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class PickerMetrics:
    """Counts requests as their exchanges with Envoy end, and serves `GET /metrics` at an address."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.meters = Meters()
        self.port = 0
        self._runner: web.ServerRunner | None = None

    def count(self, served: int, refused: int, status: int) -> None:
        """Count a request that has ended. `refused`: the status with which it was refused, 0 if it was not; `served`:
        the number of the endpoint that answered, -1 if none; `status`: the answer's, 0 if the client has disconnected.
        """
        self.meters.arrivals.inc()
        if refused:
            self.meters.refused.labels(str(refused)).inc()
        elif not status:
            self.meters.gone.inc()
        elif served >= 0:
            self.meters.requests.labels(str(served), str(status)).inc()

    async def open(self, host: str, port: int) -> None:
        """Serve at an address. Raises InputError if the address is not free."""
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=1)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            where = f"{host}:{port}"
            raise InputError("--metrics", f"an address that is free ({error.strerror or error})", where) from None
        self.port = int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if request.method not in ("GET", "HEAD") or request.path != "/metrics":
            return web.Response(status=404, text="expected GET /metrics\n")
        return web.Response(body=self.meters.text(self.dispatcher), headers=TEXT)
