"""The client: framing of answers, connections that break, guards, and the words of a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.objects import make_node, make_pod
from tests.kube.processes import free_port
from tests.kube.scripted import Scripted, ok

from kant.kube.connect.client import ApiClient, ApiError, ExpiredError, FencedError, Guard, require_version
from kant.kube.connect.config import Config, load
from kant.kube.connect.credentials import TokenFile
from kant.kube.connect.decoding import decoded
from kant.kube.connect.errors import advice
from kant.kube.connect.wire import Connection, Response
from kant.kube.objects.views import Meta, Pod
from kant.model.errors import InputError


class _Transport(asyncio.Transport):
    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        pass


@given(
    body=st.binary(max_size=80),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    framing=st.sampled_from(["length", "chunked", "trailers", "close"]),
    early=st.booleans(),
)
def test_an_answer_is_the_same_however_it_is_framed_and_cut(
    body: bytes, sizes: list[int], cuts: list[int], framing: str, early: bool
) -> None:
    head = b"HTTP/1.1 100 Continue\r\n\r\n" if early else b""
    head += b"HTTP/1.1 201 Created\r\nretry-After: 7\r\n"
    if framing == "length":
        wire = head + b"content-length: %d\r\n\r\n" % len(body) + body
    elif framing == "close":
        wire = head + b"\r\n" + body
    else:
        wire, rest, turn = head + b"Transfer-Encoding: chunked\r\n\r\n", body, 0
        while rest:
            piece, rest = rest[: sizes[turn % len(sizes)]], rest[sizes[turn % len(sizes)] :]
            wire += b"%X;x=y\r\n%b\r\n" % (len(piece), piece)
            turn += 1
        wire += b"0\r\nA: b\r\n\r\n" if framing == "trailers" else b"0\r\n\r\n"

    async def main() -> None:
        connection = Connection()
        connection.connection_made(_Transport())
        for _ in range(1 if framing == "close" else 2):  # the second on the same connection
            answer, rest, turn = connection.send(b""), wire, 0
            while rest:
                assert not answer.done()
                size = cuts[turn % len(cuts)]
                connection.data_received(rest[:size])
                rest, turn = rest[size:], turn + 1
            if framing == "close":
                connection.connection_lost(None)
            assert answer.result() == Response(201, body, "7")

    asyncio.run(main())


def _with(server: Scripted, main: Any, **options: Any) -> None:
    async def run() -> None:
        async with server, ApiClient(Config(server.url), **options) as client:
            await main(client)

    asyncio.run(run())


def test_a_kept_connection_that_is_gone_is_replaced_for_a_read_and_reported_for_a_write() -> None:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        if len(server.seen) in (2, 4):  # it was kept, and ends as the request arrives
            writer.close()
        else:
            writer.write(ok(b"{}"))

    async def main(client: ApiClient) -> None:
        assert await client.call("GET", "/1") == b"{}"
        assert await client.call("GET", "/2") == b"{}"
        assert server.accepted == 2
        with pytest.raises(ApiError) as lost:
            await client.call("POST", "/3", b"{}")
        assert (lost.value.code, lost.value.reason, lost.value.heals) == (0, "Lost", True)
        assert len(server.seen) == 4, "a write is never sent twice"

    server = Scripted(answer)
    _with(server, main)


def test_an_answer_that_comes_too_late_is_nobodys() -> None:
    given_up = asyncio.Event()

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        if b"/slow" in request:
            await given_up.wait()
        writer.write(ok(request.split(b" ")[1]))

    async def main(client: ApiClient) -> None:
        with pytest.raises(ApiError, match="no answer in time") as late:
            await client.call("POST", "/slow", b"", timeout=0.05)
        assert late.value.reason == "Timeout"
        given_up.set()
        assert await client.call("GET", "/next") == b"/next"
        await asyncio.sleep(0.2)
        assert await client.call("GET", "/after") == b"/after"

    _with(Scripted(answer), main, concurrency=1)


@pytest.mark.parametrize("proxied", [False, True])
async def test_the_guard_is_asked_when_the_connection_is_there_and_stops_the_request(proxied: bool) -> None:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(ok(b"{}"))

    async with Scripted(answer) as server:
        config = Config("http://api.invalid", proxy=server.url) if proxied else Config(server.url)
        async with ApiClient(config, concurrency=1) as client:
            asked: list[int] = []

            def guard() -> bool:
                asked.append(len(server.seen))
                return len(asked) == 2

            with pytest.raises(FencedError):
                await client.bind("ns", "pod", "uid", "node", guard=guard)
            assert asked == [0] and server.seen == []
            await client.bind("ns", "pod", "uid", "node", {"a": "b"}, guard=guard)
            assert asked == [0, 0] and len(server.seen) == 1
            binding = msgspec.json.decode(server.seen[0].partition(b"\r\n\r\n")[2])
            assert binding["metadata"] == {"name": "pod", "namespace": "ns", "uid": "uid", "annotations": {"a": "b"}}

            async def hold() -> None:  # the only place is taken: a request that waits has not asked yet
                await client.call("GET", "/x", guard=lambda: bool(asked.append(7) or True))

            if not proxied:
                await asyncio.gather(hold(), hold())
                assert server.accepted == 1


async def test_a_guarded_request_without_an_answer_may_still_be_carried_out() -> None:
    """Only one that was sent counts, for as long as the caller says; the API server drops it at its timeout."""

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        if b"/lost" in request:
            writer.close()
        elif b"/slow" not in request:
            writer.write(ok(b"{}"))

    async def unanswered(server: str, path: str, guard: Guard | None = lambda: True) -> bool:
        async with ApiClient(Config(server)) as client:
            with suppress(ApiError, FencedError):
                await client.call("POST", path, b"{}", params={"a": "b"}, timeout=0.05, guard=guard)
            assert not client.may_be_carried_out(within=0.0)
            return client.may_be_carried_out(within=60.0)

    async with Scripted(answer) as server:
        assert await unanswered(server.url, "/slow")
        assert await unanswered(server.url, "/lost")
        assert not await unanswered(server.url, "/quick")
        assert [line.split()[1] for line in server.seen] == [
            f"/{path}?a=b&timeout=50ms".encode() for path in ("slow", "lost", "quick")
        ]
        assert not await unanswered(server.url, "/slow", guard=None) and server.seen[3].split()[1] == b"/slow?a=b"
        assert not await unanswered(server.url, "/slow", guard=lambda: False)
        assert not await unanswered(f"http://127.0.0.1:{free_port()}", "/slow")
        async with ApiClient(Config(server.url)) as client:
            sent = asyncio.create_task(client.call("POST", "/slow", b"{}", guard=lambda: True))
            while len(server.seen) < 5:
                await asyncio.sleep(0.01)
            assert not client.may_be_carried_out(within=60.0)
            sent.cancel()
            with suppress(asyncio.CancelledError):
                await sent
            assert client.may_be_carried_out(within=60.0)


async def test_refusals_carry_the_words_of_the_server(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    answers = [
        ok(b'{"kind":"Status","code":429,"reason":"TooManyRequests","message":"slow down"}', 429, "Retry-After: 3"),
        ok(b'{"kind":"Status","code":410,"reason":"ExpiredError","message":"too old"}', 410),
        ok(b"Bad Gateway\n", 502),
        ok(b'{"code":401,"reason":"Unauthorized","message":"Unauthorized"}', 401),
        ok(b"{}"),
        b"nonsense\r\n\r\n",
    ]

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answers.pop(0))

    async with Scripted(answer) as server, ApiClient(Config(server.url, credentials=TokenFile(token))) as client:
        with pytest.raises(ApiError) as error:
            await client.call("GET", "/")
        assert (error.value.code, error.value.retry_after, error.value.message) == (429, 3.0, "slow down")
        with pytest.raises(ExpiredError):
            await client.call("GET", "/")
        with pytest.raises(ApiError, match="Bad Gateway") as error:
            await client.call("GET", "/")
        assert error.value.heals
        token.write_text("new\n")
        with pytest.raises(ApiError) as error:
            await client.call("GET", "/")
        assert "credentials of here" in advice(error.value, "here") and not error.value.heals
        assert b"Authorization: Bearer old\r\n" in server.seen[-1]
        await client.call("GET", "/")
        assert b"Authorization: Bearer new\r\n" in server.seen[-1], "the token file is read again after a 401"
        with pytest.raises(ApiError, match="not HTTP"):
            await client.call("POST", "/", b"{}")


def test_pages_go_on_leave_out_what_does_not_decode_and_expire() -> None:
    good, bad = b'{"metadata":{"name":"a"}}', b'{"metadata":{"name":"b","namespace":"n"},"spec":{"priority":"high"}}'
    first = b'{"metadata":{"resourceVersion":"7","continue":"x/y"},"items":[%b,%b]}' % (good, bad)

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        again = b"continue=x%2Fy" in request
        writer.write(ok(b'{"code":410,"reason":"ExpiredError","message":"continue"}', 410) if again else ok(first))

    async def main(client: ApiClient) -> None:
        got: list[str] = []
        odd: list[tuple[Meta, str]] = []
        with pytest.raises(ExpiredError):
            async for items, version in client.pages("/p", Pod, on_malformed=lambda *told: odd.append(told)):
                got += [f"{item.metadata.name}@{version}" for item in items]
        assert got == ["a@7"]
        assert odd[0][0].name == "b" and "priority" in odd[0][1]

    _with(Scripted(answer), main)


def test_what_cannot_stand_in_a_request_is_not_sent() -> None:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(ok(b"{}"))

    async def main(client: ApiClient) -> None:
        with pytest.raises(ValueError, match="not the path"):
            await client.call("GET", "/a HTTP/1.1\r\nX: y")

    _with(Scripted(answer), main)


def test_a_server_that_is_too_old_is_said() -> None:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(ok(b'{"major":"1","minor":"28+","gitVersion":"v1.28.3-eks"}'))

    async def main(client: ApiClient) -> None:
        with pytest.raises(InputError, match=r"expected Kubernetes 1.29 or later, got 'v1.28.3-eks'"):
            await require_version(client)

    _with(Scripted(answer), main)


async def test_against_a_real_api_server(plane: ControlPlane) -> None:
    async with Api(plane) as api:
        await api.create(make_node("node-0"))
        await api.create(make_pod("one"))
        async with ApiClient(load(plane.kubeconfig("admin"))) as client:
            await require_version(client)
            pod = await client.get("/api/v1/namespaces/default/pods/one", Pod)
            uid = pod.metadata.uid
            for wrong, code in (("no-such-uid", 409), (uid, 200), (uid, 409)):
                binding = client.bind("default", "one", wrong, "node-0", {"scheduling.kant.dev/leader": "me/1"})
                assert await _code(binding) == code
            path = "/api/v1/namespaces/default/pods/one"
            pod = await client.get(path, Pod)
            assert pod.spec.node_name == "node-0"
            assert (pod.metadata.annotations or {})["scheduling.kant.dev/leader"] == "me/1"
            await client.patch(path, {"metadata": {"labels": {"a": "b"}}})
            await client.patch(path, [{"op": "remove", "path": "/metadata/labels/a"}], "json")
            labels = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "labels": {"c": "d"}}}
            await client.patch(path, labels, "apply")
            assert (await client.get(path, Pod)).metadata.labels == {"c": "d"}
            assert await _code(client.delete(path, uid="another")) == 409
            await client.evict("default", "one", uid, dry_run=True)
            await client.evict("default", "one", uid)
            assert (await client.get(path, Pod)).metadata.deletion_timestamp  # it ends in its own time


async def _code(call: Coroutine[Any, Any, Any]) -> int:
    try:
        await call
    except ApiError as error:
        return error.code
    return 200


def test_what_a_person_must_mend_is_one_sentence(plane: ControlPlane) -> None:
    async def sentence(config: Config) -> str:
        async with ApiClient(config) as client:
            with pytest.raises(ApiError) as error:
                await client.call("GET", "/api/v1/pods")
            return advice(error.value, config.source)

    def asked(config: Config) -> str:
        return asyncio.run(sentence(config))

    assert asked(load(plane.kubeconfig("nobody"))) == (
        "no permission to list pods: add it to ClusterRole kant, as in the output of `kant kube manifests` (403)"
    )
    path = plane.kubeconfig("kant", token="wrong")
    assert asked(load(path)) == (
        f"the API server does not accept the credentials of {path}, context kant: they are wrong or have expired (401)"
    )
    assert asked(Config(plane.url, "F")).startswith(f"{plane.url}: its certificate is not trusted by F: ")
    assert asked(Config("https://127.0.0.1:1")) == "https://127.0.0.1:1: no connection: Connection refused"


FORBIDDEN = b'{"kind": "Status", "code": 403, "message": "pods is forbidden: User \\"kant\\" cannot list resource '
FORBIDDEN += b'\\"pods\\" in API group \\"\\" at the cluster scope"}'
STARTS, DENIES = "the API server starts, and does not know its roles yet", "add it to ClusterRole kant"


@pytest.mark.parametrize(
    ("ready", "away_s", "words"), [(200, 0, DENIES), (500, 99, STARTS), (403, 0, STARTS), (403, 99, DENIES)]
)
async def test_a_server_that_starts_is_not_taken_for_one_that_denies(ready: int, away_s: float, words: str) -> None:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        asked = request.startswith(b"GET /readyz")
        writer.write(ok(b"{}", ready) if asked else ok(FORBIDDEN, 403))

    async with Scripted(answer) as server, ApiClient(Config(server.url, source="here")) as client:
        client._away -= away_s
        for ask in (client.call("GET", "/api/v1/pods"), anext(client.stream("/api/v1/pods", {}, 1.0))):
            with pytest.raises(ApiError) as error:
                await ask
            assert words in advice(error.value, "here") and error.value.heals == (words == STARTS)


def test_an_answer_that_is_no_such_object_is_an_error_that_may_heal() -> None:
    with pytest.raises(ApiError, match="GET /x: the answer cannot be decoded: Expected `object`") as wrong:
        decoded(b'{"metadata": 7}', Pod, "GET /x")
    assert (wrong.value.code, wrong.value.reason, wrong.value.heals) == (0, "Malformed", True)
