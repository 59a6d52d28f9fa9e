"""Profile and queues change without a restart; what is wrong changes nothing, and says so."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.local.up import PROFILE, TEXT, Up, eventually

from kant.model.errors import InputError
from kant.service import reload
from kant.service.daemon import DaemonOptions, serve
from kant.service.notices import read_notices
from kant.service.reload import Files
from kant.workload.cluster_file import read_cluster
from kant.workload.tenants_file import read_tenants

TEAM = '[[queue]]\nname = "team"\ngpus = {gpus}\n'


def prepare() -> None:
    reload.EVERY = 0.1


def complaint(kant: Up) -> str:
    return str(kant.client.get("/v1/health")["complaint"])


def test_queues_and_profile_follow_their_files_and_mistakes_change_nothing(tmp_path: Path) -> None:
    queues, profile, cluster = (tmp_path / name for name in ("queues.toml", "profile.toml", "cluster.toml"))
    queues.write_text(TEAM.format(gpus=2))
    profile.write_text(TEXT)
    cluster.write_text("")
    files = Files(profile, queues, cluster)
    with Up(tmp_path / "home", "1x8", prepare, queue_config=read_tenants(queues), files=files) as kant:
        runs = kant.submit("sleep 60", queue="team", gpus=2)
        waits = kant.submit("sleep 60", queue="team", gpus=2)
        assert eventually(lambda: kant.phase(runs) == "running")
        assert eventually(lambda: "quota" in kant.job(waits)["job"]["waits"]), kant.job(waits)["job"]
        queues.write_text("[[queue]]\nname = 3\n")
        assert eventually(lambda: "the previous content stays in use" in complaint(kant))
        queues.write_text(TEAM.format(gpus=2).replace("team", "other"))
        assert eventually(lambda: f"expected queue team to stay while job {runs} is in it" in complaint(kant))
        assert kant.phase(waits) == "waiting"
        queues.write_text(TEAM.format(gpus=8) + '[[queue]]\nname = "more"\ngpus = 0\n')
        assert eventually(lambda: kant.phase(waits) == "running") and eventually(lambda: complaint(kant) == "")
        assert kant.over(kant.submit("true", queue="more")) == ["finished"]

        profile.write_text("discipline = 7")
        assert eventually(lambda: "profile.toml" in complaint(kant))
        profile.write_text(TEXT.replace('name = "kant"', 'name = "mine"', 1) + "\n# changed\n")
        assert eventually(lambda: complaint(kant) == "")
        assert eventually(lambda: kant.client.get("/v1/health")["profile"] != PROFILE.name)
        assert [kant.phase(job) for job in (runs, waits)] == ["running", "running"]  # nobody was disturbed
        last = kant.submit("true", queue="team", gpus=1)
        assert kant.over(last) == ["finished"]
        assert len(list((kant.home / "journal").glob("*.jsonl"))) == 2
        cluster.write_text("# other\n")
        os.kill(kant.pid, signal.SIGHUP)
        assert eventually(lambda: "`kant down` and `kant up` apply it" in complaint(kant))
        for job in (runs, waits):
            assert kant.job(job)["job"]["attempt"] == 1
            kant.client.post(kant.client.job(job, "cancel"))
        kant.over(runs, waits)


def test_a_profile_that_heeds_no_quotas_is_refused_with_queues(tmp_path: Path) -> None:
    from kant.scheduler.profile import builtin_profile, builtin_texts

    queues = tmp_path / "queues.toml"
    queues.write_text(TEAM.format(gpus=2))
    plain = next(p for p in map(builtin_profile, builtin_texts()) if not p.discipline.quotas)
    with pytest.raises(InputError, match="one that respects the quotas of queues"):
        serve(
            DaemonOptions(
                home=tmp_path / "home", profile=plain, cluster=read_cluster("1x1"), queue_config=read_tenants(queues)
            )
        )
    assert PROFILE.discipline.quotas


def test_notices_follow_their_file(tmp_path: Path) -> None:
    file, told = tmp_path / "notices.toml", tmp_path / "told"

    def says(word: str) -> str:
        return f'[[notice]]\non = ["finished"]\ncommand = ["sh", "-c", "echo {word} >> {told}"]\n'

    file.write_text(says("first"))
    with Up(tmp_path / "home", "1x4", prepare, notices=read_notices(file), files=Files(notices=file)) as kant:
        kant.over(kant.submit("true"))
        assert eventually(lambda: told.exists() and told.read_text() == "first\n")
        file.write_text("[[notice]]\n")
        assert eventually(lambda: "notices.toml" in complaint(kant))
        kant.over(kant.submit("true"))
        assert eventually(lambda: told.read_text() == "first\nfirst\n"), "what was there stays"
        file.write_text(says("other"))
        assert eventually(lambda: complaint(kant) == "")
        kant.over(kant.submit("true"))
        assert eventually(lambda: told.read_text() == "first\nfirst\nother\n")
