"""`kant explain`: every start of a journal is decided again alike, and what is told of it is what happened."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import kant, trace

from kant.cli.plain import ranges

CLUSTER = """
[[nodes]]
count = 6
gpus = 8
model = "H100"
name = "n{index}"
[topology]
nodes_per_leaf = 2
leaves_per_spine = 2
"""
PREEMPTS = """
name = "preempts"
[order]
policy = "fifo"
[discipline]
policy = "best-effort"
[placement]
policy = "best-fit"
[preemption]
"""


def run(folder: Path, rows: Path | str, profile: str = "e-binpack") -> Path:
    """The journal of a run of these rows (parted by blanks) on six nodes in three leaves."""
    if isinstance(rows, str):
        (folder / "jobs.csv").write_text("\n".join(rows.split()) + "\n")
    (folder / "cluster.toml").write_text(CLUSTER)
    source = rows if isinstance(rows, Path) else folder / "jobs.csv"
    out = folder / "out"
    kant("simulate", source, "--cluster", folder / "cluster.toml", "--profile", profile, "--out", out, "--json").json()
    return out / "journal.jsonl"


def decided(journal: Path) -> list[tuple[int, str, list[list[int]]]]:
    """(time, job, allocation) of every decision to start."""
    plans = [line for line in map(json.loads, journal.read_text().splitlines()) if line["event"] == "planned"]
    return [(p["time"], d["job"], d["allocation"]) for p in plans for d in p["decisions"] if d["do"] == "start"]


def lines(*arguments: str | Path) -> list[str]:
    found = kant("explain", *arguments)
    assert found.code == 0, found
    return [" ".join(line.split()) for line in found.out.splitlines()]


@pytest.mark.parametrize("profile", ["e-binpack", "kant", "easy", "conservative", "srtf", "muri-srsf", "helios-srtf"])
def test_every_start_is_decided_again_alike(profile: str, tmp_path: Path) -> None:
    jobs = trace(tmp_path / "trace.csv", jobs=12, sizes=(1, 2, 4, 8, 12, 16, 24), spread=3)
    journal = run(tmp_path, jobs, profile)
    seen: Counter[str] = Counter()
    for time, job, allocation in decided(journal):
        seen[job] += 1
        found = kant("explain", job, journal, "--start", str(seen[job]), "--json").json()
        assert found["agrees"] and found["how"] == "policy" and found["time_us"] == time
        assert (found["start"], found["starts"] >= seen[job]) == (seen[job], True)
        assert sum(node["pods"] for node in found["place"]) == sum(piece[1] for piece in allocation)
        check_account(found)
    assert len(seen) == 12


def check_account(found: dict[str, Any]) -> None:
    """What every answer keeps."""
    names = {node["node"] for node in found["place"]}
    account, effect = found["account"], found["effect"]
    for pool in account["pools"]:
        assert pool["nodes"] == pool["cordoned"] + pool["failed"] + pool["full"] + pool["left"] == 6
    assert effect["nodes"] == len(names) >= effect["fewest_nodes"] >= 1
    assert effect["leaves"] >= effect["fewest_leaves"] >= 1 and effect["slowdown"] >= 1000
    if account["nodes"] is not None:
        for node in account["nodes"]["ranked"]:
            assert (node["pods"] > 0) == (node["name"] in names)
        assert account["nodes"]["ranked"][0]["rank"] == 1
    for level in account["levels"][:-1]:
        assert level["ranked"] == [] and (level["holding"] == 0 or level["takes"] == level["pods"])


def test_it_shows_what_there_was_to_choose_from_and_why_one_won(tmp_path: Path) -> None:
    rows = "id,submit_s,runtime_s,gpus,pods,limit_s old,0,3600,8,1,3600 bit,0,3600,2,1,3600 gang,60,600,8,2,600"
    found = lines("gang", run(tmp_path, rows))
    for line in (
        "gang: started at 0d 00:01:00 on 2 nodes",
        "2 pods on 16 GPUs",
        "H100: 6 nodes, 2 too full: 4 can run a pod",
        "0 of 6 nodes hold the gang: the best holds 1 of 2 pods",
        "2 of 3 leaves hold the gang",
        "> 1 leaf-0 2 yes yes no 2 16",
        "2 leaf-1 2 yes yes no 2 16",
        "leaf-0 comes before leaf-1: both rank equally, and it is the first in order",
        "2 nodes to choose from in leaf-0; most-pods, node by node",
        "> 1 n0 1 1 1",
        "n0: 1 pod on GPUs 0-7",
        "in one leaf: 2 nodes, the fewest possible, 1 leaf, the fewest possible",
        "it runs as fast as at the best possible place",
        "it fills 2 nodes; partly used nodes: 1 before, 1 after",
        "now over 2 nodes of one leaf: no reason to wait",
    ):
        assert line in found, line


def test_a_spread_gang_is_told_what_that_costs_and_what_it_could_have_had(tmp_path: Path) -> None:
    """Each leaf has one node that is taken; the last one is given back ten minutes later."""
    rows = "id,submit_s,runtime_s,gpus,pods,limit_s"
    rows += "".join(f" t{i},0,{span},8,1,{span}" for i, span in enumerate((60, 7200, 60, 7200, 60, 660)))
    journal = run(tmp_path, rows + " gang,60,100000,8,2,100000")
    found = lines("gang", journal)
    for line in (
        "n0 is the only node in leaf-0 that fits a pod",
        "0 of 3 leaves hold the gang: the best holds 1 of 2 pods",
        "> 1 spine-0 2 yes yes yes 2 16",
        "pods: 1 in leaf-0, 1 in leaf-1",
        "in one spine: 2 nodes, the fewest possible, 2 leaves where 1 would do",
        "it runs 0.9 % slower than at the best possible place",
        "10m more for one leaf, or now over 2 leaves, 0.9 % slower: waiting ends 5m sooner",
    ):
        assert line in found, line
    assert kant("explain", "gang", journal, "--json").json()["wait_or_place"]["wait"] is True


def test_who_had_to_make_room_is_named(tmp_path: Path) -> None:
    rows = "id,submit_s,runtime_s,gpus,pods,priority" + "".join(f" low{i},0,3600,8,1,0" for i in range(6))
    rows += " high,900,600,8,1,5"
    (tmp_path / "preempts.toml").write_text(PREEMPTS)
    found = lines("high", run(tmp_path, rows, str(tmp_path / "preempts.toml")))
    assert "evicted for it" in found and "job low0" in found
    assert "H100: 6 nodes, 5 too full: 1 can run a pod" in found  # as things stood once room was made


def test_a_level_that_the_job_asks_for_is_said(tmp_path: Path) -> None:
    rows = "id,submit_s,runtime_s,gpus,pods,within,within_required must,0,600,8,2,leaf,1 may,0,600,8,3,leaf,0"
    journal = run(tmp_path, rows, "fifo")
    assert "2 pods on 16 GPUs, required in one leaf" in lines("must", journal)
    found = lines("may", journal)
    assert "3 pods on 24 GPUs, preferred in one leaf" in found
    assert "0 of 3 leaves hold the gang: the best holds 2 of 3 pods" in found


def test_another_start_and_another_time_can_be_asked_for(journal: Path) -> None:
    starts = Counter(job for _, job, _ in decided(journal))
    (job, count), *_ = starts.most_common()
    assert count > 1
    times = [time for time, other, _ in decided(journal) if other == job]
    assert kant("explain", job, journal, "--json").json()["start"] == count
    for number, time in enumerate(times, start=1):
        by_number = kant("explain", job, journal, "--start", str(number), "--json").json()
        assert by_number == kant("explain", job, journal, "--at", f"{time}us", "--json").json()
        assert (by_number["start"], by_number["starts"], by_number["time_us"]) == (number, count, time)
    assert f", start 1 of {count}" in kant("explain", job, journal, "--start", "1").out


def test_a_decision_that_this_kant_would_not_make_is_said_to_be_one(tmp_path: Path) -> None:
    journal = run(tmp_path, "id,submit_s,runtime_s,gpus,pods job,0,600,8,1")
    (tmp_path / "other.jsonl").write_text(journal.read_text().replace('"allocation":[[4,', '"allocation":[[3,'))
    found = kant("explain", "job", tmp_path / "other.jsonl")
    assert found.code == 1 and "this version of Kant would not" in found.out and "n3: 1 pod" in found.out
    told = kant("explain", "job", tmp_path / "other.jsonl", "--json").json()
    assert (told["agrees"], told["account"]) == (False, None)


def test_what_cannot_be_explained_is_one_sentence(tmp_path: Path) -> None:
    journal = run(tmp_path, "id,submit_s,runtime_s,gpus,pods first,0,600,8,6 waits,60,600,8,6")
    for arguments, words in (
        (("nobody", journal), "expected a job of"),
        (("waits", journal, "--at", "2m"), "`kant why`"),
        (("first", journal, "--start", "2"), "expected a number from 1 to 1"),
        (("first", journal, "--start", "0"), "expected a number from 1 to 1"),
        (("first", journal, "--start", "1", "--at", "2m"), "either --start or --at"),
        (("first", journal, "--at", "9d"), "expected a time in the journal"),
        (("first", tmp_path / "nowhere"), "a journal that can be read"),
    ):
        assert words in kant("explain", *arguments).refusal()


def test_a_place_that_the_placement_did_not_choose_has_no_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kant.insight.start_explanation import TracingPlacer

    monkeypatch.setattr(TracingPlacer, "place", lambda self, shape, job_row=0: self.placer.place(shape, job_row))
    journal = run(tmp_path, "id,submit_s,runtime_s,gpus,pods job,0,600,8,1")
    found = kant("explain", "job", journal, "--json").json()
    assert (found["agrees"], found["how"], found["account"]) == (True, "plan", None)
    assert "the search for a start in time found this place; the usual placement found none" in lines("job", journal)


def test_why_and_eta_say_whether_a_gang_should_wait_for_one_leaf(tmp_path: Path) -> None:
    """At 10 minutes a node of each of two leaves comes free, and twenty minutes later the second one of a third."""
    rows = "id,submit_s,runtime_s,gpus,pods,limit_s"
    rows += "".join(f" t{i},0,{span},8,1,{span}" for i, span in enumerate((600, 7200, 600, 7200, 1200, 1800)))
    journal = run(tmp_path, rows + " gang,60,100000,8,2,100000 part,60,100000,4,1,100000 next,60,600,8,2,600", "fifo")
    sentence = "20m more for one leaf, or in 8m over 2 leaves, 0.9 % slower: waiting ends 5m later"
    told = kant("why", "gang", journal, "--at", "2m")
    assert told.code == 0 and f"wait or place\n  {sentence}\n" in told.out, told
    as_json = kant("why", "gang", journal, "--at", "2m", "--json").json()
    assert as_json["wait_or_place"] == {"wait": False, "sentence": sentence}
    assert f"wait or place\n  gang: {sentence}\n" in kant("eta", journal, "--at", "2m").out
    jobs = kant("eta", journal, "--at", "2m", "--json").json()["jobs"]
    assert [job["wait_or_place"] is not None for job in jobs] == [True, False, False]  # `next` has not its turn
    assert kant("why", "part", journal, "--at", "2m", "--json").json()["wait_or_place"] is None


def test_neighbours_are_named_as_ranges() -> None:
    assert [ranges(numbers, ", ") for numbers in ([], [3], [0, 1], [0, 2, 3, 4, 7])] == ["", "3", "0-1", "0, 2-4, 7"]
