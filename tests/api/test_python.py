"""Objects, frames and digests of `import kant`, beside what the rooms of Kant say themselves."""

from __future__ import annotations

import sys
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant as command
from tests.kube.processes import Forked

import kant
from kant import columns
from kant.sim import run
from kant.testing import make_jobs


@cache
def small() -> kant.Workload:
    """Made by the first test that asks for it: Polars starts threads, which a worker that is forked would not have."""
    cells = {"submit_s": [0, 10, 20, 30], "runtime_s": [100, 60, 60, 40], "gpus": [4, 2, 8, 16]}
    return kant.Workload.of({"id": ["a", "b", "c", "d"], **cells})


class LargestFirst(kant.Order, frozen=True, tag="largest-first"):
    """A policy as somebody writes it beside a run."""

    source = "a test"
    tags = kant.tagged(kant.Order.tags, objective="none", knowledge="none")

    def keys(self, jobs: Any, rows: Any, now: int) -> Any:
        return -jobs[rows, columns.J_MILLI]


# --- workloads -------------------------------------------------------------------------------------------------------

jobs_columns = st.integers(1, 12).flatmap(
    lambda n: st.fixed_dictionaries(
        {
            "id": st.lists(st.text("abc", min_size=1, max_size=4), min_size=n, max_size=n, unique=True),
            "submit_s": st.lists(st.integers(0, 10**15).map(lambda us: us / 10**6), min_size=n, max_size=n),
            "runtime_s": st.lists(st.integers(0, 10**12).map(lambda us: us / 10**6), min_size=n, max_size=n),
            "gpus": st.lists(st.integers(0, 64), min_size=n, max_size=n),
        },
        optional={
            "queue": st.lists(st.sampled_from(["default", "x", "y"]), min_size=n, max_size=n),
            "priority": st.lists(st.integers(-3, 3), min_size=n, max_size=n),
            "limit_s": st.lists(st.none() | st.integers(0, 10**6), min_size=n, max_size=n),
        },
    )
)


@given(jobs_columns)
def test_a_workload_is_its_frame(given_columns: dict[str, list[Any]]) -> None:
    jobs = kant.Workload.of(given_columns)
    again = kant.Workload.of(jobs.frame)
    assert again.frame.equals(jobs.frame) and again.inner.origin == jobs.inner.origin
    assert again.digest == kant.Workload.of(again.frame).digest
    order = np.argsort(np.array(given_columns["submit_s"]), kind="stable")
    for name, cells in given_columns.items():
        if name in jobs.frame.columns:
            assert jobs.frame[name].to_list() == [cells[row] for row in order], name
        else:
            assert len(set(cells)) == 1, f"{name} is left out only where it holds its default"


def test_a_frame_and_a_file_with_the_same_jobs_are_one_workload(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    small().frame.write_csv(file)
    read = kant.Workload.read(file)
    assert read.digest == small().digest and read.name == "jobs.csv" and len(read) == 4


@pytest.mark.parametrize(
    ("given_columns", "sentence"),
    [
        ({"submit_s": [0], "gpus": [1]}, "expected the columns runtime_s"),
        ({"submit_s": [0], "runtime_s": [1], "gpus": [1], "colour": ["red"]}, "expected only the columns"),
        ({"submit_s": [0, 1], "runtime_s": [1, "long"], "gpus": [1, 1]}, "field runtime_s"),
        ({"submit_s": [0, 1], "runtime_s": [1], "gpus": [1, 1]}, "expected columns of equal length"),
        ({"submit_s": [], "runtime_s": [], "gpus": []}, "expected at least one job"),
    ],
)
def test_columns_that_are_no_jobs_are_refused_in_one_sentence(given_columns: dict[str, Any], sentence: str) -> None:
    with pytest.raises(kant.InputError) as error:
        kant.Workload.of(given_columns)
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_generated_jobs_are_those_of_the_seed() -> None:
    one, same, other = (kant.Workload.generate("philly", jobs=50, days=1, seed=seed) for seed in (1, 1, 2))
    assert one.digest == same.digest != other.digest and len(one) == 50
    assert repr(one).startswith("Workload('philly-1': 50 jobs in ")


# --- clusters --------------------------------------------------------------------------------------------------------


def test_a_cluster_is_a_frame_of_its_nodes() -> None:
    text = '[[nodes]]\ncount = 2\ngpus = 8\nmodel = "H100"\ncpu = 96\nmemory = "1GiB"\n[[nodes]]\ngpus = 4\n'
    cluster = kant.Cluster.parse(text, "two kinds")
    assert repr(cluster) == "Cluster('two kinds': 3 nodes, 20 GPUs)" and len(cluster) == 3
    assert cluster.frame["gpus"].to_list() == [8, 8, 4] and cluster.frame["model"].to_list() == ["H100", "H100", ""]
    assert cluster.frame["cores"].to_list() == [96.0, 96.0, None]
    assert cluster.frame["memory_mib"].to_list() == [1024.0, 1024.0, None]
    assert kant.Cluster.read("2x4").digest == kant.Cluster.read("2x4").digest != kant.Cluster.read("4x2").digest
    with pytest.raises(kant.InputError, match="expected NxG"):
        kant.Cluster.read("many")


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_is_that_of_the_rooms_and_of_the_command_line(tmp_path: Path) -> None:
    cluster, profile = kant.Cluster.read("1x8"), kant.Profile.read("kant")
    result = kant.simulate(small(), cluster, profile, seed=3)
    inside = run.simulate(small().inner, cluster.inner, profile.inner, seed=3)
    file = tmp_path / "jobs.csv"
    small().frame.write_csv(file)
    said = command("simulate", file, "--cluster", "1x8", "--seed", 3, "--json").json()
    assert result.digest == inside.summary["digest"] == said["digest"]
    assert kant.simulate(file, "1x8", "kant", seed=3).digests == result.digests
    mine = tmp_path / "mine.toml"
    mine.write_text(profile.text)
    assert kant.simulate(str(file), "1x8", mine, seed=3).digests == result.digests


def test_a_window_and_a_queue_of_a_trace_are_read(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("id,submit_s,runtime_s,gpus,queue\na,0,1,1,x\nb,100,1,1,y\nc,110,1,1,x\n")
    late = kant.Workload.read(file, window="50s:1h")
    assert late.frame["id"].to_list() == ["b", "c"] and late.inner.submit.tolist() == [0, 10_000_000]
    assert kant.Workload.read(file, slice="x").frame["id"].to_list() == ["a", "c"]
    with pytest.raises(kant.InputError, match="window: expected"):
        kant.Workload.read(file, window="soon")


def test_the_frame_of_jobs_says_what_happened() -> None:
    jobs = kant.simulate(small(), "1x8", "fifo").jobs
    seconds = {name: jobs[name].dt.total_seconds().to_list() for name in ("submit", "first_start", "end", "wait")}
    assert jobs["id"].to_list() == ["a", "b", "c", "d"] and jobs["gpus"].to_list() == [4, 2, 8, 16]
    assert jobs["status"].to_list() == ["finished", "finished", "finished", "rejected"]
    assert seconds["submit"] == [0, 10, 20, 30]
    assert seconds["first_start"] == [0, 10, 100, None] and seconds["end"][:3] == [100, 70, 160]
    assert seconds["wait"][:3] == [0, 0, 80]
    assert jobs["completion"].dt.total_seconds().to_list() == [100, 60, 140, None]


def test_frames_add_up_to_the_figures_of_the_summary() -> None:
    work = kant.Workload.generate("philly", gpus=32, load=1.2, days=1, seed=4)
    result = kant.simulate(work, "4x8", "kant", ledger=True)
    admitted = result.jobs.filter(pl.col("status") != "rejected")
    wait = admitted["wait"].dt.total_microseconds()
    assert wait.mean() == pytest.approx(result.summary["wait_s"]["mean"] * 1e6)
    causes = [name for name in result.jobs.columns if name.startswith("waited_")]
    owed = result.jobs.select(pl.sum_horizontal(pl.col(causes).dt.total_microseconds())).to_series()
    assert causes and owed.to_list() == result.jobs["wait"].dt.total_microseconds().to_list()
    series = result.series
    spans = series["time"].dt.total_microseconds().diff().shift(-1).to_numpy()[:-1]
    allocated = float((series["allocated_gpus"].to_numpy()[:-1] * spans).sum())
    serving = float((series["in_service_gpus"].to_numpy()[:-1] * spans).sum())
    assert allocated / serving == pytest.approx(result.summary["sor"])
    pieces = result.placements
    held = (pieces["gpus"] * (pieces["end"] - pieces["start"]).dt.total_microseconds()).sum()
    assert held == pytest.approx(allocated)
    assert (pieces["devices"].list.len() >= pieces["gpus"]).all()


def test_a_run_that_ends_early_keeps_what_has_not_happened_empty() -> None:
    result = kant.simulate(small(), "1x8", "fifo", until="1m")
    assert result.jobs["status"].to_list() == ["running", "running", "pending", "rejected"]
    assert result.jobs["end"].null_count() == 3 and result.jobs["completion"].null_count() == 4


def test_what_decides_a_run_is_in_its_digests() -> None:
    base = kant.simulate(small(), "1x8", "fifo")
    changed = {
        "workload": kant.simulate(kant.Workload.of(small().frame.head(3)), "1x8", "fifo"),
        "cluster": kant.simulate(small(), "2x8", "fifo"),
        "profile": kant.simulate(small(), "1x8", "easy"),
    }
    for part, other in changed.items():
        differ = {name for name in base.digests if base.digests[name] != other.digests[name]}
        assert part in differ and differ <= {part, "decided"}, part
    assert base.versions["kant"] == kant.__version__ and base.versions["polars"] == pl.__version__


# --- profiles and policies -------------------------------------------------------------------------------------------


def test_a_policy_written_here_decides() -> None:
    jobs = kant.Workload.of({"submit_s": [0, 1, 2], "runtime_s": [10, 10, 10], "gpus": [2, 1, 2]})
    profile = kant.Profile.read("fifo").using(order=LargestFirst())
    result = kant.simulate(jobs, "1x2", profile)
    assert result.jobs["first_start"].dt.total_seconds().to_list() == [0, 20, 10]
    assert profile.name == "fifo, largest-first" and "LargestFirst()" in profile.text
    assert repr(profile) == "Profile('fifo, largest-first': largest-first, strict, consolidated)"
    kant.check_policy(LargestFirst(), rounds=1)


def test_policies_are_named_or_given() -> None:
    base = kant.Profile.read("fifo")
    named = base.using(order="sjf", discipline="easy", placement="best-fit", name="mine")
    assert named.name == "mine" and repr(named) == "Profile('mine': sjf, easy, best-fit)"
    assert kant.Profile.parse(base.text, "x").inner.order == base.inner.order


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"order": "nonsense"}, "order.policy: expected one of"),
        ({"order": kant.Profile.read("fifo").inner.discipline}, "an instance of kant.Order"),
        ({"discipline": 3}, "an instance of kant.Discipline"),
        ({"order": "drf", "discipline": "preemptive"}, ", as the order ranks queues by share, got 'preemptive'"),
    ],
)
def test_policies_that_do_not_go_together_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(kant.InputError) as error:
        kant.Profile.read("fifo").using(**changes)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"profile": "nonsense"}, "profile: expected a TOML file or one of"),
        ({"seed": -1}, "seed: expected a whole number from 0"),
        ({"seed": True}, "seed: expected a whole number from 0"),
        ({"until": "soon"}, "until: expected"),
        ({"queues": "nowhere.toml"}, "nowhere.toml"),
        ({"faults": "nowhere.csv"}, "nowhere.csv"),
        ({"workload": "nowhere.csv"}, "nowhere.csv: expected a file that exists"),
    ],
)
def test_a_run_that_cannot_be_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(kant.InputError) as error:
        kant.simulate(**({"workload": small(), "cluster": "1x8"} | arguments))
    assert sentence in str(error.value)


def test_queues_and_faults_are_read_from_files(tmp_path: Path) -> None:
    queues, faults = tmp_path / "queues.toml", tmp_path / "faults.csv"
    queues.write_text('[[queue]]\nname = "default"\ngpus = 4\n')
    limited = kant.simulate(small(), "1x8", "kant", queues=queues)
    assert limited.jobs["first_start"].dt.total_seconds().to_list()[1] == 100  # a holds the whole quota until then
    faults.write_text("time_s,node,state\n5,node-00000,failed\n50,node-00000,in-service\n")
    assert kant.simulate(small(), "1x8", "kant", faults=faults).summary["node_faults"] == 1
    queues.write_text('[[queue]]\nname = "other"\n')
    with pytest.raises(kant.InputError, match="the queue 'default', which jobs uses"):
        kant.simulate(small(), "1x8", "kant", queues=queues)


POLICY = """
import kant
class Mine(kant.Order, frozen=True, tag="mine"):
    factor: int = 2
    def keys(self, jobs, rows, now):
        return jobs[rows, kant.columns.J_MILLI] * LITTLE
jobs = kant.Workload.of({"submit_s": [0, 1], "runtime_s": [9, 9], "gpus": [1, 2]})
result = kant.simulate(jobs, "1x2", kant.Profile.read("fifo").using(order=Mine()))
print(result.digests["code"], result.digests["profile"])
"""


def be_the_script(text: str) -> None:
    """What `python -c` does with it."""
    sys.modules["__main__"] = main = ModuleType("__main__")
    exec(text, main.__dict__)


def test_what_a_policy_of_a_script_does_is_in_the_digest_of_the_code(tmp_path: Path) -> None:
    def digests(text: str, log: Path) -> list[str]:
        log.touch()
        assert Forked(partial(be_the_script, text), log).wait() == 0, log.read_text()
        return log.read_text().split()

    once = digests(POLICY.replace("LITTLE", "3"), tmp_path / "once")
    moved = digests("\n\n" + POLICY.replace("LITTLE", "3"), tmp_path / "moved")
    other = digests(POLICY.replace("LITTLE", "5"), tmp_path / "other")
    assert once == moved and once[0] != other[0] and once[1] == other[1]


# --- tables ----------------------------------------------------------------------------------------------------------


def test_compare_has_a_row_for_each_result() -> None:
    fifo, easy = (kant.simulate(small(), "1x8", name) for name in ("fifo", "easy"))
    table = kant.compare(fifo, easy, figures=["wait_s.mean", "tardiness_s.mean"])
    assert table["profile"].to_list() == ["fifo", "easy"] and table["digest"].to_list() == [fifo.digest, easy.digest]
    assert table["wait_s.mean"].to_list() == [one.summary["wait_s"]["mean"] for one in (fifo, easy)]
    assert table["tardiness_s.mean"].dtype == pl.Float64
    for wrong in ((), (fifo,)):
        with pytest.raises(kant.InputError):
            kant.compare(*wrong, figures=["beauty"])


def test_a_notebook_shows_a_result_as_a_table() -> None:
    jobs = kant.Workload(make_jobs("<b>&", submit=[0], runtime=[60], gpus=[1]))
    shown = kant.simulate(jobs, "1x8", "fifo")._repr_html_()
    assert "<caption>&lt;b&gt;&amp; on 1x8 under fifo</caption>" in shown and "1 of 1 jobs" in shown


def test_policies_are_a_frame_chosen_by_tags() -> None:
    every, learned = kant.policies(), kant.policies(method="learned", unit="request")
    assert len(every) > len(learned) > 0 and set(learned["policy"]) < set(every["policy"])
    assert all("learned" in methods for methods in learned["method"].to_list())
    both = kant.policies(method="rule learned", objective="tardiness")
    assert both["policy"].to_list() == ["eddc", "mddc"]
    assert kant.policies(level="os").is_empty() and kant.policies(level="os").columns == every.columns
    for where in ({"colour": "red"}, {"method": "magic"}, {"method": ""}):
        with pytest.raises(kant.InputError, match="policies: expected"):
            kant.policies(**where)
