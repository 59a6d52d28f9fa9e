"""What is in files is read again while it runs: keys and limits of tenants, certificates, and where the record goes."""

from __future__ import annotations

import asyncio
import hashlib
import math
import ssl
from pathlib import Path

import aiohttp
import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.certificates import ONE, OTHER
from tests.gateway.engines import engines, well
from tests.gateway.rig import RUNNER, dispatcher, routing

from kant.gateway.ask import RefusedError
from kant.gateway.envoy import HealthCheckRequest, HealthCheckResponse
from kant.gateway.picker import PickerServer
from kant.gateway.record import Record
from kant.gateway.tenants import Tenant, Tenants, read_tenants
from kant.model.errors import InputError


async def status(url: str, key: str, trusts: str) -> int | None:
    """The status of a request over a new connection; None where the certificate is not `trusts`."""
    context = ssl.create_default_context(cadata=trusts[trusts.index("-----BEGIN CERTIFICATE") :])
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        try:
            headers = {"Authorization": f"Bearer {key}"}
            async with session.post(url + "/v1/completions", json={"prompt": "x"}, headers=headers) as found:
                await found.read()
                return found.status
        except aiohttp.ClientConnectorCertificateError:
            return None


def test_files_are_read_again_all_or_none(tmp_path: Path) -> None:
    pem, toml, day = tmp_path / "both.pem", tmp_path / "tenants.toml", tmp_path / "day.jsonl"

    def tenants(key: str) -> str:
        return f'[tenants.lab]\nkey_sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'

    async def run() -> None:
        pem.write_text(ONE)
        toml.write_text(tenants("old"))
        async with engines(well) as (_, urls):
            record = Record(day, "round-robin", "fcfs")
            async with routing(
                dispatcher(urls), read_tenants(toml), record=record, tls=(pem, pem), again=lambda: read_tenants(toml)
            ) as (server, plain):
                url = plain.replace("http:", "https:")
                assert [await status(url, "old", ONE), await status(url, "new", ONE)] == [200, 401]
                pem.write_text(OTHER)
                toml.write_text("[tenants.lab")
                with pytest.raises(InputError, match=r"tenants\.toml"):
                    server.reload()
                toml.write_text(tenants("new"))
                pem.write_text(OTHER[:200])
                with pytest.raises(InputError, match="a certificate and its key"):
                    server.reload()
                assert await status(url, "old", ONE) == 200  # nothing has changed
                pem.write_text(OTHER)
                day.rename(tmp_path / "yesterday.jsonl")
                server.reload()
                assert [await status(url, key, OTHER) for key in ("old", "new")] == [401, 200]
                assert await status(url, "new", ONE) is None

    asyncio.run(run())
    assert [len((tmp_path / name).read_bytes().splitlines()) for name in ("yesterday.jsonl", "day.jsonl")] == [3, 2]


def test_the_picker_answers_over_tls_with_the_certificate_that_is_there(tmp_path: Path) -> None:
    pem = tmp_path / "both.pem"
    pem.write_text(ONE)

    async def healthy(port: int, trusts: str) -> bool:
        credentials = grpc.ssl_channel_credentials(trusts[trusts.index("-----BEGIN CERTIFICATE") :].encode())
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
            )
            try:
                return bool((await check(HealthCheckRequest(service="liveness"))).status == 1)
            except grpc.aio.AioRpcError:
                return False

    async def run() -> None:
        chosen = dispatcher(["http://127.0.0.1:1"])
        async with PickerServer(chosen, "127.0.0.1:0", 1.0, 86400.0, tls=(pem, pem)) as picker:
            assert await healthy(picker.port, ONE) and not await healthy(picker.port, OTHER)
            pem.write_text(OTHER)
            picker.reload()
            assert await healthy(picker.port, OTHER)

    RUNNER.run(run())


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 5), st.floats(1, 1e4), st.floats(1, 1e4), st.floats(0, 1e4))
def test_a_tenant_keeps_what_it_uses_when_its_limits_change(
    before: int, after: int, used: int, tokens: float, then: float, spent: float
) -> None:
    old = Tenant("lab", before, tokens_per_minute=tokens, budget=tokens)
    tenants = Tenants({"a": old}, None)
    for _ in range(min(used, before)):
        old.take(0.0)
    old.spend(spent)  # type: ignore[arg-type]
    tenants.become(Tenants({"b": Tenant("lab", after, tokens_per_minute=then, budget=then, priority=3)}, None))
    (now,) = tenants.by_digest.values()
    assert now.used == min(used, before) and now.priority == 3 and now.budget == pytest.approx(then - spent)
    assert list(tenants.by_digest) == ["b"] and tenants.named("lab") is old  # who is under way gives back to it
    room = after > now.used and now.budget > 0
    try:
        now.take(0.0)
    except RefusedError:
        assert not room
    else:
        assert room


def test_a_limit_that_is_new_begins_full_and_one_that_is_lifted_is_gone() -> None:
    tenant = Tenant("lab")
    tenant.spend(10**9)
    tenant.limit_as(Tenant("lab", requests_per_s=2.0, burst=3.0, level=3.0, tokens_per_minute=600.0, budget=600.0))
    for _ in range(3):
        tenant.take(0.0)
    with pytest.raises(RefusedError):
        tenant.take(0.0)
    tenant.limit_as(Tenant("lab"))
    assert tenant.budget == math.inf
    tenant.take(0.0)
