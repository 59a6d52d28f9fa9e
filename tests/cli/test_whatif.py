"""`kant whatif`: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from tests.cli.command import kant
from tests.docs.pages import ROOT, words_in_backticks

from kant.cli.whatif import SOURCES
from kant.sim.remaining_work import Source
from kant.workload.job_text import WORDS

QUEUES = '[[queue]]\nname = "a"\n[[queue.quota]]\nnominal = 8\nborrowing_limit = 0\n[[queue]]\nname = "b"\ngpus = 8\n'
CLUSTER = '[[nodes]]\ncount = 2\ngpus = 8\nname = "n{index}"\ntopology = { nodes_per_leaf = 1 }\n'


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of two nodes and two queues with eight GPUs each; a job of each runs for an hour, one of each waits."""
    folder = tmp_path_factory.mktemp("whatif")
    (folder / "queues.toml").write_text(QUEUES)
    (folder / "cluster.toml").write_text(CLUSTER)
    rows = ["id,submit_s,runtime_s,gpus,queue", "a1,0,3600,8,a", "b1,0,3600,8,b", "a2,60,3600,8,a", "b2~2,120,600,4,b"]
    (folder / "jobs.csv").write_text("\n".join([*rows, "late,7000,60,8,b"]) + "\n")
    flags = ("--cluster", folder / "cluster.toml", "--queues", folder / "queues.toml", "--profile", "fifo-best-effort")
    kant("simulate", folder / "jobs.csv", *flags, "--out", folder / "run", "--json").json()
    return folder / "run" / "journal.jsonl"


def ask(journal: Path, *flags: str | Path) -> Any:
    return kant("whatif", journal, "--at", "10m", *flags, "--json").json()


def keys_of(value: Any) -> set[str]:
    """The keys of an object of `--json`, all levels; not those that are names of queues and size classes."""
    if isinstance(value, list):
        return {key for part in value for key in keys_of(part)}
    if not isinstance(value, dict):
        return set()
    found = set(value)
    for name, part in value.items():
        for inner in part.values() if name in ("by_queue", "by_size") else [part]:
            found |= keys_of(inner)
    return found


def test_a_submitted_job_is_told_of_first(shared: Path) -> None:
    found = kant("whatif", shared, "--at", "10m", "--submit", "gpus=8,time=10m,queue=b")
    assert found.code == 0
    lines = found.out.splitlines()
    assert lines[0] == "What if, at 0d 00:10:00: whatif-1 is submitted (8 GPUs in 1 pod, 10m, queue b)"
    assert lines[1] == "1 job arrives later; run times: 5 from the journal"
    assert lines[3] == (
        "  whatif-1 starts at 0d 01:10:00, after 1h: over quota: it asks for 8 GPUs, and queue b has 0 GPUs left"
    )
    (own,) = ask(shared, "--submit", "gpus=8,time=10m,queue=b,id=mine")["submitted"]
    assert (own["job"], own["start_us"], own["why"]) == ("mine", 4_200_000_000, "over-quota")


def test_a_job_that_was_submitted_again_has_the_id_that_users_know(shared: Path) -> None:
    assert [row["job"] for row in ask(shared, "--cancel", "b1")["helped"]] == ["b2"]


def test_every_kind_of_change_is_made(shared: Path) -> None:
    more = ask(shared, "--nodes", "1xn1", "--quota", "a:gpu=+8")
    assert [job["job"] for job in more["helped"]] == ["a2"] and more["harmed"] == []
    assert more["helped"][0]["after_s"] == 540 and more["waits"]["by_queue"]["a"]["sooner"] == {
        "jobs": 1,
        "mean_s": 3000,
    }
    assert ask(shared, "--nodes", "1")["waits"]["all"]["sooner"]["jobs"] == 0  # a quota does not grow with the nodes
    drained = ask(shared, "--drain", "leaf-0@+1h..+3h", "--drain", "n1@..1h30m")
    assert {job["job"]: job["after_s"] for job in drained["harmed"]} == {"b2": 5280}
    evicted = ask(shared, "--drain", "leaf-0@+10m", "--evict", "--until", "+2h")
    assert evicted["after"]["preemptions"] == 1 and evicted["after"]["end_s"] == 7800
    other = ask(shared, "--profile", "conservative", "--no-arrivals")
    assert (other["coming"], other["change"]) == (0, ["the profile is conservative"])
    assert other["after"]["profile"] == "conservative"


def test_every_key_and_word_is_on_the_page(shared: Path) -> None:
    known = words_in_backticks(ROOT / "docs" / "whatif.md")
    found = ask(shared, "--nodes", "1", "--quota", "a:gpu=16", "--submit", "gpus=1,time=1h,queue=a")
    assert found.pop("before").keys() == found.pop("after").keys()  # summaries, on a page of their own
    assert not keys_of(found) - known
    table = words_in_backticks(ROOT / "docs" / "workloads.md")
    assert not {field.name for field in WORDS.values()} - table
    assert set(SOURCES) == set(get_args(Source)) <= known


def test_out_has_both_futures_which_can_be_replayed_and_asked(shared: Path, tmp_path: Path) -> None:
    found = kant("whatif", shared, "--at", "10m", "--nodes", "1", "--out", tmp_path / "out")
    assert found.code == 0 and "report:" in found.out
    text = (tmp_path / "out/report.html").read_text()
    assert "as it is" in text and "with the change" in text
    for name in ("before", "after"):
        folder = tmp_path / "out" / name
        assert {path.name for path in folder.iterdir()} == {
            "summary.json",
            "jobs.parquet",
            "series.parquet",
            "journal.jsonl",
        }
        assert kant("replay", folder / "journal.jsonl", "--json").json()["equal"]
    assert ask(tmp_path / "out/after/journal.jsonl", "--nodes", "1")["coming"] == 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "whatif: expected at least one of --submit, --drain, --quota, --nodes, --cancel and --profile"),
        (("--evict", "--nodes", "1"), "--evict: expected a --drain with it"),
        (("--drain", "leaf-9"), "--drain: expected a node, leaf, spine or other part of the fabric of cluster"),
        (("--drain", "n0@"), "--drain: expected NAME, NAME@FROM"),
        (("--drain", "n0@1m"), "--drain: expected a time from 0d 00:10:00 on"),
        (("--drain", "n0@2h..1h"), "--drain: expected an end after the start"),
        (("--drain", "n0@soon"), "--drain: expected a duration"),
        (("--quota", "c:gpu=+1"), "--quota: expected one of the queues a, b, got 'c'"),
        (("--quota", "a:gpu:H100=+1"), "--quota: expected a quota that queue a has (gpu), got 'gpu:H100'"),
        (("--quota", "a:gpu=-9"), "--quota: expected a quota of a that is not below 0"),
        (("--quota", "a:disk=9"), "--quota: expected one of gpu, cpu, memory"),
        (("--quota", "a:gpu=many"), "--quota: expected GPUs as a number"),
        (("--quota", "a=1"), "--quota: expected QUEUE:gpu=+64"),
        (("--nodes", "0"), "--nodes: expected 1 to 100,000 nodes"),
        (("--nodes", "2xn7"), "--nodes: expected the name of a node of cluster after the x"),
        (("--submit", "gpus=1"), "--submit: expected also time"),
        (("--submit", "gpus=1,time=1h,queue=c"), "--submit: queue: expected one of the queues a, b"),
        (("--submit", "gpus=1,time=1h,queue=a,id=a1"), "--submit: id: expected an id that no other job of"),
        (("--submit", "gpus=1,time=1h,colour=red"), "--submit: expected words of"),
        (("--submit", "gpus=-1,time=1h,queue=a"), "--submit: gpus: expected a whole number"),
        (("--submit", "gpus=1,time=0,queue=a"), "--submit: time: expected a duration"),
        (("--submit", "gpus=1,time=1h,queue=a,within=rack"), "field within: expected node, hbd, leaf"),
        (("--profile", "nobody"), "--profile: expected a TOML file or one of"),
        (("--profile", "srtf"), "profile srtf: discipline: expected one that respects the quotas of queues"),
        (("--nodes", "1", "--until", "5m"), "--until: expected a time after"),
        (("--nodes", "1", "--at", "3d"), "--at: expected a time in the journal, which ends at"),
    ],
)
def test_bad_questions_get_one_sentence(flags: tuple[str, ...], sentence: str, shared: Path, tmp_path: Path) -> None:
    at = () if "--at" in flags else ("--at", "10m")
    assert sentence in kant("whatif", shared, *at, *flags, "--out", tmp_path / "out").refusal()
    assert not (tmp_path / "out").exists()


def test_a_journal_of_static_packing_has_no_future(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("id,submit_s,runtime_s,gpus,pods\na,0,60,1,1\n")
    kant("simulate", tmp_path / "jobs.csv", "--cluster", "1x8", "--profile", "openb-fgd", "--out", tmp_path / "run")
    found = kant("whatif", tmp_path / "run/journal.jsonl", "--nodes", "1")
    assert "expected a journal of jobs that end" in found.refusal()
