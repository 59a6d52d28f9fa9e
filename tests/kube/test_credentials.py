"""Credentials that cannot be renewed for a while: trouble that heals once we have begun, one sentence at the start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.live import bound
from tests.kube.objects import make_node, make_pod
from tests.kube.scripted import Scripted, ok
from tests.patience import PATIENCE_S

from kant.kube.connect import credentials as credentials_module
from kant.kube.connect import renewal
from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.config import Config, load
from kant.kube.connect.credentials import TokenFile
from kant.kube.connect.exec_plugin import Exec
from kant.kube.lead.driver import KubeDriver
from kant.kube.lead.settings import DriverSettings
from kant.kube.notify.recorder import EventRecorder
from kant.kube.user.rebuild import rebuilt
from kant.model.errors import InputError
from kant.scheduler.profile import builtin_profile

UNKNOWN = b'{"code":401,"reason":"Unauthorized","message":"Unauthorized"}'


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials_module, "REREAD", 0.0)
    monkeypatch.setattr(renewal, "AGAIN", 0.02)


async def test_the_last_token_is_shown_until_the_server_refuses_it_and_then_it_heals(tmp_path: Path) -> None:
    token, good = tmp_path / "token", ["one"]
    token.write_text("one")

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        known = f"Authorization: Bearer {good[0]}\r\n".encode() in request
        writer.write(ok(b"{}") if known else ok(UNKNOWN, 401))

    trouble: list[str] = []
    async with Scripted(answer) as server:
        config = Config(server.url, "here", TokenFile(token))
        async with ApiClient(config, on_trouble=lambda error: trouble.append(str(error))) as client:
            await client.call("GET", "/")
            token.unlink()
            await client.call("GET", "/")
            assert trouble[0].startswith("here: the credentials cannot be renewed: the token: expected a file")
            good[0] = "two"
            with pytest.raises(ApiError) as error:
                await client.call("GET", "/")
            assert error.value.code == 401
            sent = len(server.seen)
            for _ in range(2):
                with pytest.raises(ApiError, match="cannot be renewed") as error:
                    await client.call("GET", "/")
                assert error.value.heals and error.value.reason == "Credentials"
            with pytest.raises(ApiError, match="cannot be renewed"):
                async for _ in client.stream("/", {}, 1.0):
                    pass
            assert len(server.seen) == sent, "nothing is sent with a token that was refused"
            token.write_text("")
            await asyncio.sleep(0.03)
            with pytest.raises(ApiError, match="one line of text"):
                await client.call("GET", "/")
            token.write_text("two\n")
            await asyncio.sleep(0.03)
            await client.call("GET", "/")


async def test_two_clients_of_one_configuration_show_the_token_that_either_has_renewed(tmp_path: Path) -> None:
    """As a replica and its Lease do."""
    token = tmp_path / "token"
    token.write_text("one")

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(ok(b"{}"))

    async with Scripted(answer) as server:
        config = Config(server.url, credentials=TokenFile(token))
        async with ApiClient(config) as first, ApiClient(config) as second:
            for client in (first, second):
                await client.call("GET", "/")
            token.write_text("two")
            config.credentials.forget()
            await config.credentials.renew()
            config.credentials._until = float("inf")
            for client in (first, second):
                await client.call("GET", "/")
                assert b"Authorization: Bearer two\r\n" in server.seen[-1]


async def test_a_plugin_is_asked_once_for_all_who_wait(tmp_path: Path) -> None:
    plugin = tmp_path / "login"
    answer_ = '{"kind": "ExecCredential", "status": {"token": "T", "expirationTimestamp": "2999-01-01T00:00:00Z"}}'
    plugin.write_text(f"#!/bin/sh\necho >> {tmp_path}/calls\necho '{answer_}'\n")
    plugin.chmod(0o755)

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(ok(b"{}"))

    async with Scripted(answer) as server:
        config = Config(server.url, credentials=Exec({"command": "./login"}, tmp_path, {}))
        async with ApiClient(config) as client:
            await asyncio.gather(*(client.call("GET", "/") for _ in range(8)))
    assert (tmp_path / "calls").read_text() == "\n"


async def test_at_the_start_it_is_one_sentence_at_once(tmp_path: Path) -> None:
    config = Config("http://127.0.0.1:1", credentials=TokenFile(tmp_path / "absent"))
    async with ApiClient(config) as client:
        with pytest.raises(InputError, match="the token: expected a file that can be read"):
            await client.call("GET", "/")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(InputError, match="the token: expected a file that can be read"):
            await rebuilt(config, builtin_profile("kant"))


async def test_a_driver_goes_on_when_its_credentials_fail_for_a_while(plane: ControlPlane, tmp_path: Path) -> None:
    real = load(plane.kubeconfig("admin"))
    token, text = tmp_path / "token", plane.token("admin")
    token.write_text(text)
    config = Config(real.server, "here", TokenFile(token), real.ca)
    trouble: list[str] = []
    async with Api(plane) as api, ApiClient(config, on_trouble=lambda error: trouble.append(str(error))) as client:
        await api.create(make_node("n0"))
        driver = KubeDriver(
            client, DriverSettings(builtin_profile("kant"), recovery=3.0), EventRecorder(client, "test")
        )
        task = asyncio.create_task(driver.run())
        async with asyncio.timeout(PATIENCE_S):
            while driver.core is None:
                await asyncio.sleep(0.02)
        token.unlink()
        await api.create(make_pod("by-the-last-token", 2))
        await api.until(lambda pods: bound(pods) == ["by-the-last-token"])
        config.credentials.forget()
        await api.create(make_pod("later", 2))
        async with asyncio.timeout(PATIENCE_S):
            while not driver.steps.is_binding():
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        assert len(bound(await api.list("pods"))) == 1 and not task.done()
        token.write_text(text)
        await api.until(lambda pods: len(bound(pods)) == 2)
        assert trouble and not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
