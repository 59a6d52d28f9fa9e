"""What a solver could start, on a real API server: as metrics of the replica that leads, without its page."""

from __future__ import annotations

import asyncio
from urllib.request import urlopen

from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.live import bound, install, until
from tests.kube.objects import make_node, make_pod
from tests.kube.processes import free_port
from tests.kube.running import KantProcess
from tests.patience import PATIENCE_S


async def test_a_replica_that_leads_tells_prometheus_what_a_solver_sees(plane: ControlPlane) -> None:
    async with Api(plane) as api:
        await install(api)
        await api.create_all([make_node("n0")])
        port = free_port()
        kant = KantProcess(plane, "--no-leader-election", "--listen", f"127.0.0.1:{port}", user="admin")
        try:
            await api.create(make_pod("half", 4))
            await until(api, lambda pods: bound(pods) == ["half"])
            async with asyncio.timeout(PATIENCE_S):
                while 'kant_stranded_gpus{queue="default"} 4.0' not in await asyncio.to_thread(read, port):
                    await asyncio.sleep(0.2)
        finally:
            kant.kill()


def read(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return str(answer.read().decode())
