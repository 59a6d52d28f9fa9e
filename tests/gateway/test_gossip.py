"""Two routers before the same engines: what each hears is what the other has sent, and silence is forgotten."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.rig import dispatcher
from tests.gateway.test_dispatch import come
from tests.patience import until

from kant.cli.serve_route import RouterOptions, _gossiping
from kant.gateway import gossip
from kant.gateway.backends import Backends
from kant.gateway.dispatch import Dispatcher
from kant.gateway.gossip import Gossip
from kant.gateway.looks import looked
from kant.gateway.scrape import Scraped
from kant.model.errors import InputError
from kant.serving.routers import router_named

URLS = ["http://a", "http://b", "http://c"]
HERE = ("127.0.0.1", 0)


def seen(chosen: Dispatcher) -> dict[str, tuple[int, int, int]]:
    """What the router counts on each backend, whoever has sent it."""
    return {b.url: (b.site.requests, b.site.tokens(), b.site.pending_prefill()) for b in chosen.backends}


async def test_each_counts_what_the_other_has_sent_until_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip, "EVERY_S", 0.01)
    monkeypatch.setattr(gossip, "AT_ONCE", 2)
    monkeypatch.setattr(gossip, "RESOLVE_S", 0.0)
    one, two = dispatcher(URLS, router="least-tokens"), dispatcher(URLS[::-1], router="least-tokens")
    ends = [Gossip(chosen, HERE, [("127.0.0.1", 9)]) for chosen in (one, two)]
    for end in ends:
        await end.open()
    for end, other in zip(ends, ends[::-1], strict=True):
        end.peers = [("127.0.0.1", other.port), ("127.0.0.1", end.port)]  # and itself
    mine = [come(one, 100), come(one, 200), come(one, 300)]
    for placed in mine:
        assert one.offer(placed)
    one.said(mine[0], 5)
    await until(lambda: seen(two) == seen(one))
    theirs = come(two, 50)
    assert two.offer(theirs) and theirs.backend is not None
    assert theirs.backend.url == mine[0].backend.url  # type: ignore[union-attr]  # it has the fewest tokens of all
    await until(lambda: seen(one) == seen(two))
    assert sum(requests for requests, _, _ in seen(one).values()) == 4
    assert [b.own_load()[0] for b in two.backends] == [b is theirs.backend for b in two.backends]
    two.router = router_named("dodoor")  # it is told of all loads, and of any two takes the lower
    for placed in [come(two, 1) for _ in range(9)]:
        assert two.offer(placed) and placed.backend.url != mine[2].backend.url  # type: ignore[union-attr]
        two.end(placed, 1)
    one.end(mine[2], 1)
    await until(lambda: seen(two) == seen(one))
    monkeypatch.setattr(gossip, "SILENT_S", 0.1)
    ends[0].close()
    await until(lambda: seen(two) == {b.url: b.own_load() for b in two.backends})
    assert not any(backend.peers for backend in two.backends)
    ends[1].close()


async def test_the_port_is_taken_until_the_backends_close() -> None:
    chosen = dispatcher([])
    first = Gossip(chosen, HERE, [])
    async with aiohttp.ClientSession() as session:
        backends = Backends(chosen, session, 1.0, None, gossip=first)
        await backends.open()
        there = Backends(chosen, session, 1.0, None, gossip=Gossip(chosen, ("127.0.0.1", first.port), []))
        with pytest.raises(InputError, match=r"--gossip: expected an address of this machine that is free"):
            await there.open()
        await there.close()
        await backends.close()
        await until(lambda: first.transport.is_closing() and first.telling is not None and first.telling.done())
        await asyncio.sleep(0)
        await there.open()
        await there.close()


async def test_what_peers_have_is_not_counted_again_from_the_metrics() -> None:
    """The engine reports nine requests: two are this router's, three a peer's, and four somebody else's."""
    chosen = dispatcher(URLS[:1])
    (backend,) = chosen.backends
    for _ in range(2):
        chosen.offer(come(chosen, 10))
    gossip.count(chosen.backends, 7, {"http://a": (3, 60, 20), "http://elsewhere": (9, 9, 9)})
    said = Scraped(running=9, usage=480 / backend.site.settings.tokens)
    for _ in range(3):
        looked(backend, chosen, said, list(backend.rows.values()), backend.own_load()[:2])
    assert (backend.site.requests, backend.site.tokens()) == (9, 480)
    assert backend.site.pending_prefill() == 2 * 10 + 20
    assert backend.own_load() == (2, 20, 20)
    gossip.count(chosen.backends, 7, None)
    assert (backend.site.requests, backend.site.pending_prefill()) == (6, 20)
    gossip.count(chosen.backends, 7, None)


@given(st.binary(max_size=60))
def test_what_no_peer_says_is_ignored(data: bytes) -> None:
    chosen = dispatcher(URLS)
    one = Gossip(chosen, HERE, [])
    one.addresses = frozenset({("10.0.0.1", 9003)})
    before = seen(chosen)
    one.datagram_received(data, ("10.0.0.1", 40000))
    one.latest.clear()  # it may have been a peer that has nothing
    good = gossip._ENCODER.encode(gossip.Heard(1, {"http://a": (1, 2, 3)}))
    one.datagram_received(good, ("10.0.0.2", 9003))  # of a stranger
    one.datagram_received(gossip._ENCODER.encode(gossip.Heard(1, {"http://a": (-1, 2, 3)})), ("10.0.0.1", 9003))
    one.datagram_received(gossip._ENCODER.encode(gossip.Heard(one.me, {"http://a": (1, 2, 3)})), ("10.0.0.1", 9003))
    assert seen(chosen) == before and not one.latest
    one.datagram_received(good, ("10.0.0.1", 9003))
    assert seen(chosen)["http://a"] == (1, 2, 3)


@pytest.mark.parametrize("options", [RouterOptions(gossip="127.0.0.1:9003"), RouterOptions(peers="127.0.0.1:9003")])
def test_where_others_are_heard_and_who_they_are_go_together(options: RouterOptions) -> None:
    with pytest.raises(InputError, match="--gossip and --peers: expected both, or none"):
        _gossiping(options)
