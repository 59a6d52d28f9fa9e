"""Rounds of `kant share`: no GPU twice, no job lost, nothing idle that could run; and what others have published."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.conftest import DataFile
from tests.examples import examples

from kant.model.adaptive import AdaptiveJob, EpochRun, gns_batch, plain_job
from kant.optimize.share.interior import inside
from kant.optimize.share.outcome import SharingOutcome
from kant.optimize.share.policies import ALSO, POLICIES
from kant.optimize.share.rounds import ShareRound, simulate
from kant.workload.read import read_workload
from kant.workload.shockwave import adaptive_text, read_adaptive
from kant.workload.shockwave_draw import draw

GPUS = 6

PUBLISHED = {
    "max-min": (33_208, 11_274, 2.95, 0.250),
    "gandiva-fair": (32_367, 12_574, 1.85, 0.517),
    "mst": (31_909, 9_655, 4.98, 0.250),
    "ossp": (24_205, 19_807, 7.74, 0.742),
    "themis": (31_929, 11_302, 3.44, 0.225),
    "allox": (32_489, 9_926, 4.96, 0.275),
}
"""Makespan, mean completion, worst fairness and unfair share of the trace for 32 GPUs (artifact of Shockwave)."""
NEAR = {"themis": (0.01, 0.01, 0.13, 0.08), "mst": (0.01, 0.01, 0.03, 0.001)}
"""How near the rivals come, where not within a hundredth. Themis was solved by Gurobi, whose point is another; with
MST jobs of one kind are worth the same, and rounding decides which of them goes first."""


@st.composite
def workloads(draw: st.DrawFn) -> list[AdaptiveJob]:
    """A few jobs: some adapt, some do not, of one or two queues."""
    made: list[AdaptiveJob] = []
    for i in range(draw(st.integers(1, 7))):
        arrival, gpus = float(draw(st.integers(0, 2000))), draw(st.sampled_from((1, 2, 4)))
        if draw(st.booleans()):
            made.append(plain_job(f"j{i}", arrival, gpus, draw(st.integers(1, 3000)), draw(st.sampled_from("ab"))))
            continue
        first = draw(st.sampled_from((5, 10, 80)))
        runs = (EpochRun(first, 40.0, draw(st.integers(1, 30))), EpochRun(80, 20.0, draw(st.integers(1, 30))))
        declared = float(first * 40)
        mode = draw(st.sampled_from(("static", "accordion", "gns")))
        made.append(AdaptiveJob(f"j{i}", arrival, gpus, "LM", mode, declared, runs, 59_675, "a"))
    return made


def ran(
    jobs: list[AdaptiveJob], policy: str, gpus: int = GPUS, **options: object
) -> tuple[SharingOutcome, list[ShareRound]]:
    rounds: list[ShareRound] = []
    found = simulate(jobs, gpus, POLICIES[policy], watch=rounds.append, **options)  # type: ignore[arg-type]
    return found, rounds


def test_a_job_that_a_larger_batch_ends_takes_no_time_back() -> None:
    runs = (EpochRun(5, 40.0, 11), EpochRun(80, 20.0, 22))
    job = AdaptiveJob("j", 1.0, 1, "LM", "gns", 200.0, runs, 59_675, "a")
    other = AdaptiveJob("k", 0.0, 1, "LM", "static", 400.0, (EpochRun(10, 40.0, 1), *runs[1:]), 59_675, "a")
    found, rounds = ran([other, job], "allox")
    assert len(found.each) == 2
    assert all(seconds >= 0 for each in rounds for _, seconds in each.jobs)


@pytest.mark.parametrize("policy", POLICIES)
@given(jobs=workloads(), weighted=st.booleans())
@settings(max_examples=examples(10))
def test_rounds_give_no_gpu_twice_and_lose_no_job(policy: str, jobs: list[AdaptiveJob], weighted: bool) -> None:
    found, rounds = ran(jobs, policy, weights={"a": 3.0} if weighted else None)
    assert sorted(job.name for job in found.each) == sorted(job.name for job in jobs)
    for job in found.each:
        assert job.end_s >= job.arrival_s
    last = 0.0
    for each in rounds:
        assert each.start >= last
        assert sum(job.gpus for job, _ in each.jobs) <= GPUS
        numbers = [job.number for job, _ in each.jobs]
        assert len(set(numbers)) == len(numbers)
        assert all(job.job.arrival <= each.start for job, _ in each.jobs)
        assert all(0 <= seconds <= each.end - each.start + 1e-6 for _, seconds in each.jobs)
        last = each.end
    assert found.makespan_s == max(job.end_s for job in found.each)
    again, _ = ran(jobs, policy, weights={"a": 3.0} if weighted else None)
    assert again == found


@given(seconds=st.lists(st.integers(1, 2000), min_size=1, max_size=5))
@settings(max_examples=examples(20))
def test_a_job_that_is_never_stopped_takes_its_time(seconds: list[int]) -> None:
    """With room for all from the beginning, each takes its run time; rounds end as soon as all steps are made."""
    jobs = [plain_job(str(i), 0.0, 1, length, "a") for i, length in enumerate(seconds)]
    found, _ = ran(jobs, "gandiva-fair", gpus=len(jobs))
    for job, length in zip(found.each, seconds, strict=True):
        assert job.end_s == pytest.approx(length)


def test_a_newcomer_pays_for_being_loaded_and_whoever_goes_on_does_not() -> None:
    jobs = [plain_job("early", 0.0, 1, 600, "a"), plain_job("late", 60.0, 1, 600, "a")]
    found, rounds = ran(jobs, "max-min", gpus=2)
    first = {job.job.name: (each.start, seconds) for each in reversed(rounds) for job, seconds in each.jobs}
    assert first == {"early": (0.0, 120.0), "late": (120.0, 100.0)}
    assert {job.name: job.end_s for job in found.each} == {"early": 600.0, "late": 740.0}


def test_weights_divide_time_between_queues() -> None:
    """A queue of one job with three parts of four, beside a queue of eight: it has its share whatever their number."""
    jobs = [plain_job("p", 0.0, 1, 3000, "prod"), *(plain_job(f"r{i}", 0.0, 1, 3000, "res") for i in range(8))]
    for policy in ("max-min", "gandiva-fair"):
        ends = {}
        for weight in (0.1, 1.0, 3.0):
            found, _ = ran(jobs, policy, gpus=2, weights={"prod": weight})
            ends[weight] = next(job.end_s for job in found.each if job.name == "p")
        assert ends[3.0] <= ends[1.0] < ends[0.1]


@given(st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=examples(40))
def test_the_interior_point_is_feasible_and_as_good_as_any_vertex(seed: int, n: int) -> None:
    """A knapsack with bounds: the best value is known by taking the dearest first."""
    random = np.random.Generator(np.random.PCG64(seed))
    value, size = random.uniform(0.5, 5, n), random.integers(1, 5, n).astype(float)
    room = float(random.uniform(0.3, 1.2) * size.sum())
    rows = np.vstack([-np.eye(n), size[None, :], np.eye(n)])
    found = inside(-value, rows, np.concatenate([np.zeros(n), [room], np.ones(n)]))
    assert (found >= -1e-6).all() and (found <= 1 + 1e-6).all() and size @ found <= room + 1e-6
    left, best = room, 0.0
    for i in np.argsort(-value / size).tolist():
        part = min(1.0, left / size[i])
        best, left = best + part * value[i], left - part * size[i]
    assert value @ found == pytest.approx(best, abs=1e-5)


def test_the_noise_scale_doubles_batches_at_the_measured_epochs() -> None:
    sizes = [gns_batch("LM", 5, 1, epoch) for epoch in (0, 30, 31, 41, 61, 71, 500)]
    assert sizes == [5, 5, 10, 20, 40, 80, 80]


@given(jobs=st.integers(1, 30), seed=st.integers(0, 10**6))
@settings(max_examples=examples(15))
def test_a_drawn_trace_reads_as_it_was_drawn(tmp_path_factory: pytest.TempPathFactory, jobs: int, seed: int) -> None:
    drawn = draw(jobs, 40.0, seed)
    path = tmp_path_factory.mktemp("drawn") / "t.csv"
    path.write_text(adaptive_text(drawn, "t"))
    assert read_adaptive(path) == drawn
    workload = read_workload(path)
    assert workload.total_gpus.tolist() == [job.gpus for job in drawn]
    assert workload.runtime.tolist() == [round(job.exclusive * 1e6) for job in drawn]


@pytest.mark.long
@pytest.mark.parametrize("policy", PUBLISHED)
def test_rivals_agree_with_the_published_results(policy: str, data_file: DataFile) -> None:
    jobs = read_adaptive(data_file("shockwave_120.csv.gz"))
    found, _ = ran(jobs, ALSO.get(policy, policy), gpus=32)
    got = (found.makespan_s, found.jct_s, found.ftf.worst, found.ftf.unfair_share)
    for mine, theirs, near in zip(got, PUBLISHED[policy], NEAR.get(policy, (0.01, 0.01, 0.01, 0.001)), strict=True):
        assert mine == pytest.approx(theirs, rel=near, abs=0.001), (policy, got)


def test_the_commands_say_all_figures_and_refuse_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    assert kant("share", "generate", "--jobs", "12", "--seed", "3", "--out", str(path)).code == 0
    answer = kant("share", "simulate", str(path), "--policy", "ossp", "--gpus", "4", "--json")
    assert answer.code == 0
    found = json.loads(answer.out)
    assert set(found["ftf"]) == {"worst", "mean", "unfair_share"}
    assert found["makespan_s"] >= found["jct_s"] > 0 and len(found["each"]) == 12
    both = json.loads(kant("share", "compare", str(path), "ossp", "mst", "--gpus", "4", "--json").out)
    assert [row["policy"] for row in both["policies"]] == ["ossp", "mst"]
    assert both["policies"][0]["makespan_s"] == found["makespan_s"]
    for arguments, part in (
        (("--policy", "x"), "expected one of"),
        (("--gpus", "1"), "gpus"),
        (("--preemption", "200s"), "less than a round"),
        (("--round", "20.001s"), "time for a preemption and a step"),
        (("--weights", "a=-1"), "above 0"),
    ):
        refused = kant("share", "simulate", str(path), *arguments)
        assert refused.code != 0 and part in refused.err and refused.err.count("\n") == 1
    broken = path.read_text().replace(":", "/", 1)
    (tmp_path / "b.csv").write_text(broken.splitlines()[0].replace("/", ":") + "\n" + "t,a,0,1,LM,gns,1,720,5:x:1\n")
    refused = kant("share", "simulate", str(tmp_path / "b.csv"))
    assert refused.code != 0 and "runs such as" in refused.err
