"""`kant perf`: what it prints, and what it says of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command import kant

from kant.cli.perf import picture, place_of
from kant.model.errors import InputError
from kant.model.node import ClusterSpec, Node
from kant.placement.perf.places import hbd_nodes, places_in
from kant.placement.perf.streams import COMPUTE, INTER, INTRA, StreamTask, run

JOB = 'model = "mixtral-8x7b"\nlayers = 4\ntensor = 8\nexpert = 8\n'


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


def test_a_step_is_broken_down_and_drawn(job: Path) -> None:
    done = kant("perf", "step", job, "--placement", "8x8", "--placement", "16x4/2")
    assert done.code == 0, done
    assert "slower than the fastest" in done.out
    assert "16x4/2: layer 3 backward" in done.out
    assert "between nodes" in done.out


def test_the_numbers_of_a_step_add_up(job: Path) -> None:
    answer = kant("perf", "step", job, "--placement", "8x8/2", "--json").json()
    (found,) = answer["placements"]
    assert found["gpus"] == 64
    assert found["step_s"] == pytest.approx(found["forward_s"] + found["backward_s"])
    assert found["parallel"] == {"tensor": 8, "expert": 8, "data": 8, "pipeline": 1}
    assert found["spans"]["all_to_all"] == "spine"
    ends = [max(task["end_s"] for task in found["streams"][name]) for name in ("forward", "backward")]
    assert found["forward_s"] == pytest.approx(4 * ends[0])


def test_measured_costs_change_the_step(job: Path, tmp_path: Path) -> None:
    measured, costs = tmp_path / "measured.csv", tmp_path / "costs.toml"
    rows = [f"gemm,,{size},{1e-5 + size * 1e-14}" for size in (10**9, 10**10, 10**11)]
    rows += [f"all_to_all,leaf,{size},{1e-5 + size / 25e9}" for size in (10**6, 10**7)]
    measured.write_text("\n".join(["operation,place,size,seconds", *rows]) + "\n")
    done = kant("perf", "fit", measured, "--out", costs)
    assert done.code == 0, done
    assert "200.0 TFLOP/s" in done.out
    assert "25.0 GB/s" in done.out
    fitted = kant("perf", "fit", measured, "--json").json()
    assert [line["operation"] for line in fitted["costs"]] == ["all_to_all", "gemm"]
    slow, fast = (
        kant("perf", "step", job, "--placement", "8x8", "--json", *more).json()["placements"][0]["step_s"]
        for more in (("--costs", costs), ())
    )
    assert slow > 1.5 * fast


def test_the_fabric_of_a_cluster_file_counts(job: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text("[fabric.leaf]\nbandwidth_gb_s = 10\nlatency_us = 9.6\n\n[[nodes]]\ncount = 8\ngpus = 8\n")
    slow, fast = (
        kant("perf", "step", job, "--placement", "8x8", "--json", *more).json()["placements"][0]["step_s"]
        for more in (("--cluster", cluster), ())
    )
    assert slow > fast


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--placement", "8"), "--placement: expected NODESxGPUS/LEAVES"),
        ((), "--placement and --gpus: expected exactly one of them"),
        (("--placement", "8x8", "--gpus", "8"), "--placement and --gpus: expected exactly one of them"),
        (("--gpus", "0"), "--gpus: expected at least 1"),
        (("--gpus", "64", "--cluster", "4x8"), "--gpus: expected at most the 32 GPUs"),
        (("--placement", "8x8/16"), "--placement: expected NODESxGPUS/LEAVES"),
        (("--placement", "0x8"), "--placement: expected NODESxGPUS/LEAVES"),
        (("--placement", "8x8", "--layer", "5"), "--layer: expected a layer of one stage, from 1 to 4"),
        (("--placement", "8x8", "--costs", "absent.toml"), "absent.toml"),
    ],
)
def test_what_cannot_be_placed_is_refused_in_a_sentence(job: Path, options: tuple[str, ...], sentence: str) -> None:
    assert sentence in kant("perf", "step", job, *options).refusal()


def test_a_placement_is_as_even_as_can_be() -> None:
    spans = place_of("10x8/4/2").spans()
    assert (spans.gpus, spans.nodes) == (80, 10)
    assert spans.largest == (8, 8, 24, 40, 80)


def test_a_placement_lies_in_few_hbds() -> None:
    nvl = ClusterSpec("nvl72", tuple(Node(f"n{i}", 4, hbd=f"rack{i // 18}", leaf=f"l{i // 36}") for i in range(72)))
    assert hbd_nodes(nvl) == 18
    assert hbd_nodes(ClusterSpec("plain", (Node("n0", 8),))) == 1
    together, apart = place_of("18x4").spans(18), place_of("18x4/2").spans(18)
    assert (together.hbds, together.largest[1], together.level) == (1, 72, 1)
    assert (apart.hbds, apart.largest[1], apart.level) == (2, 36, 3)
    assert place_of("36x4").spans(18).hbds == 2
    assert place_of("4x4").spans(18).largest == (4, 16, 16, 16, 16)


@pytest.mark.parametrize("text", ["8x8", "8x8/2", "16x4/4/2", "16x4/4/2/2", "16x4/4/1/1"])
def test_the_words_of_a_placement_name_it(text: str) -> None:
    place = place_of(text)
    assert place_of(str(place)) == place
    assert str(place) == text.removesuffix("/1").removesuffix("/1")


def test_placements_are_those_that_the_cluster_has() -> None:
    nodes = tuple(Node(f"n{i}", 8, leaf=f"l{i // 4}", spine=f"s{i // 8}") for i in range(16))
    cluster = ClusterSpec("four leaves", nodes)
    assert [str(place) for place in places_in(cluster, 32)] == ["4x8", "4x8/2", "4x8/4", "4x8/2/2", "8x4/2"]
    assert [str(place) for place in places_in(cluster, 128)] == ["16x8/4/2"]
    assert [str(place) for place in places_in(cluster, 4)] == ["1x4", "2x2"]
    assert str(places_in(cluster, 12)[0]) == "2x6"
    with pytest.raises(InputError, match="at most the 128 GPUs of nodes of 8"):
        places_in(cluster, 136)


def test_a_job_is_shown_where_it_could_lie(job: Path) -> None:
    found = kant("perf", "step", job, "--gpus", "64", "--json").json()["placements"]
    assert [each["placement"] for each in found] == ["8x8", "8x8/2", "8x8/4", "8x8/2/2", "16x4"]
    assert min(found, key=lambda each: each["step_s"]) == found[0]


def test_a_picture_has_a_letter_for_what_runs() -> None:
    tasks = (
        StreamTask("dispatch", INTER, 1.0),
        StreamTask("dispatch", INTER, 1.0),
        StreamTask("gather", INTRA, 1.0, after=1),
        StreamTask("compute", COMPUTE, 1.0, after=2),
    )
    assert picture((run(tasks, 1.0),), 0.5) == ["DDdd....", "....GG..", "......EE"]
