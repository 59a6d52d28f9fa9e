"""Exchanges loads over UDP with other routers of the same engines: what each router has sent to each engine.

Each router sends its whole load on each engine twenty times a second, so lost or late datagrams do no harm. A peer that
has been silent for a while no longer counts; by then its requests show in the engines' metrics.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kant.gateway.backend import Backend
from kant.gateway.dispatch import Dispatcher
from kant.live.logs import log_event
from kant.model.errors import InputError

log = logging.getLogger("kant.gateway")

EVERY_S = 0.05
SILENT_S = 1.0
"""Seconds without a datagram after which a peer no longer counts."""

RESOLVE_S = 5.0
"""Seconds between two look-ups of the peers' names. A name may have many addresses, and they may change."""

AT_ONCE = 500
"""The maximum number of engines in a datagram, whose size is limited to 64 KiB."""

Address = tuple[str, int]
Load = tuple[int, int, int]
"""The number of requests, their tokens, and how many of the tokens are still to prefill."""


class Heard(msgspec.Struct, array_like=True):
    """A datagram: its sender, and the sender's load on some engines, by URL."""

    peer: int
    loads: dict[str, Load]


_DECODER, _ENCODER = msgspec.msgpack.Decoder(Heard), msgspec.msgpack.Encoder()


def count(backends: Iterable[Backend], peer: int, loads: Mapping[str, Load] | None) -> None:
    """Record the load of another router on some backends, by URL. None: that router is silent."""
    for backend in backends:
        before = backend.peers.get(peer)
        load = None if loads is None else loads.get(backend.url, before)
        if load == before:
            continue
        if load is None:
            del backend.peers[peer]
        else:
            backend.peers[peer] = load
        backend.add_up()


class Gossip(asyncio.DatagramProtocol):
    """The exchange of one router with its peers; `port` is the UDP port that was opened."""

    def __init__(self, dispatcher: Dispatcher, listen: Address, peers: Sequence[Address]) -> None:
        self.dispatcher, self.listen, self.peers = dispatcher, listen, peers
        self.me = random.getrandbits(63)
        self.port = 0
        self.telling: asyncio.Task[None] | None = None
        self.addresses: frozenset[Address] = frozenset()
        self.latest: dict[int, float] = {}
        """When each peer was last heard."""
        self.resolved = 0.0

    async def open(self) -> None:
        """Start to send and to receive. Raises InputError if the address is taken, or not one of this machine."""
        try:
            found = await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, local_addr=self.listen)
        except OSError:
            raise InputError(
                "--gossip", "an address of this machine that is free", f"{self.listen[0]}:{self.listen[1]}"
            ) from None
        self.transport: asyncio.DatagramTransport = found[0]
        self.port = self.transport.get_extra_info("sockname")[1]
        self.telling = asyncio.create_task(self._tell())

    def close(self) -> None:
        """Stop the exchange, if it was opened."""
        if self.telling is not None:
            self.telling.cancel()
            self.transport.close()

    async def _tell(self) -> None:
        while True:
            if time.monotonic() - self.resolved >= RESOLVE_S:
                await self._resolve()
            loads = [(b.url, b.own_load()) for b in self.dispatcher.backends]
            for first in range(0, max(len(loads), 1), AT_ONCE):
                message = _ENCODER.encode(Heard(self.me, dict(loads[first : first + AT_ONCE])))
                for address in self.addresses:
                    self.transport.sendto(message, address)
            self._forget_silent()
            await asyncio.sleep(EVERY_S)

    async def _resolve(self) -> None:
        """Look up the peers' names. If that fails, the last known addresses stay in use."""
        found: set[Address] = set()
        for host, port in self.peers:
            try:
                infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
                found |= {(str(info[4][0]), int(info[4][1])) for info in infos}
            except OSError as error:
                log_event(log, "a peer is not found", logging.WARNING, peer=f"{host}:{port}", error=str(error))
        self.addresses = frozenset(found) or self.addresses
        self.resolved = time.monotonic()

    def datagram_received(self, data: bytes, addr: Address) -> None:
        """Process a peer's datagram; any other datagram is ignored."""
        if not any(addr[0] == host for host, _ in self.addresses):
            return
        try:
            heard = _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if heard.peer != self.me and all(0 <= number < 1 << 40 for load in heard.loads.values() for number in load):
            if heard.peer not in self.latest:
                log_event(log, "hears a peer", peer=f"{addr[0]}:{addr[1]}")
            self.latest[heard.peer] = time.monotonic()
            count(self.dispatcher.backends, heard.peer, heard.loads)

    def error_received(self, exc: Exception) -> None:
        """Ignore that a peer is unreachable: it is forgotten once it has been silent for a while."""

    def _forget_silent(self) -> None:
        now = time.monotonic()
        for peer in [peer for peer, at in self.latest.items() if now - at > SILENT_S]:
            del self.latest[peer]
            count(self.dispatcher.backends, peer, None)
            log_event(log, "no longer hears a peer", logging.WARNING)
