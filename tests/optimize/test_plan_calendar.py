"""`kant plan calendar`: what it prints, and what it says of files that are wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from tests.cli.command import kant

WEEK = """id,start,end,gpus,alignment,offset,gaps
pretrain,0d,5d,256,8,,2d-2d6h
serving,0d,7d,64,8,0,
rack 3 under maintenance,1d,1d12h,64,,320,
finetune,12h,3d,64,8,,
burst,2d,2d6h,256,8,,
"""


@pytest.fixture
def week(tmp_path: Path) -> Path:
    path = tmp_path / "week.csv"
    path.write_text(WEEK)
    return path


def test_a_week_that_fits(week: Path) -> None:
    done = kant("plan", "calendar", week, "--capacity", "512", "--json")
    answer = done.json()
    assert done.code == 0 and answer["status"] == "fits" and answer["capacity"] == 512
    assert answer["lower_bound"] <= answer["needed"] <= answer["first_fit"] <= 512
    places = {row["id"]: row for row in answer["bookings"]}
    assert places["serving"]["first_gpu"] == 0 and places["rack 3 under maintenance"]["first_gpu"] == 320
    assert places["pretrain"]["first_gpu"] % 8 == 0
    assert (places["finetune"]["start"], places["finetune"]["end"]) == (43_200, 259_200)
    assert "fit on 512 GPUs" in kant("plan", "calendar", week, "--capacity", "512").out


def test_a_week_that_does_not_fit_names_who_collides(week: Path) -> None:
    done = kant("plan", "calendar", week, "--capacity", "320", "--json")
    answer = done.json()
    assert done.code == 1 and answer["status"] == "infeasible" and answer["minimal"]
    assert answer["collide"] == ["rack 3 under maintenance"]
    assert "1 collide" in kant("plan", "calendar", week, "--capacity", "320").out


def test_without_a_capacity_it_is_the_least(week: Path) -> None:
    answer = kant("plan", "calendar", week, "--json").json()
    assert answer["status"] == "fits" and answer["needed"] == answer["capacity"] == answer["lower_bound"] == 448


def test_a_file_of_several_calendars(tmp_path: Path) -> None:
    path = tmp_path / "both.csv.gz"
    path.write_bytes(gzip.compress(b"instance,id,lower,upper,size\nA,0,0,5,3\nA,1,2,6,3\nB,0,0,1,7\n"))
    assert kant("plan", "calendar", path, "--slice", "A", "--json").json()["needed"] == 6
    assert kant("plan", "calendar", path, "--slice", "B", "--json").json()["needed"] == 7
    assert "--slice with one of A, B" in kant("plan", "calendar", path).refusal()
    assert "one of the calendars" in kant("plan", "calendar", path, "--slice", "C").refusal()


HEADER = "id,start,end,gpus,alignment,offset,gaps\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ["header", "id,start,end,gpus"]),
        ("id,from,to\n", ["header", "id,lower,upper,size"]),
        ("id,start,end,gpus,colour\n", ["header", "colour"]),
        (HEADER, ["at least one booking"]),
        (HEADER + "a,0,1d\n", ["line 2", "7 cells"]),
        (HEADER + "a,0,soon,4,,,\n", ["line 2", "field end", "soon"]),
        (HEADER + "a,0,1d,4.5,,,\n", ["line 2", "field gpus", "4.5"]),
        (HEADER + "a,0,1d,0,,,\n", ["line 2", "booking a", "GPUs"]),
        (HEADER + "a,1d,0,4,,,\n", ["line 2", "start before its end"]),
        (HEADER + "\na,0,1d,4,,,\n,0,1d,4,,,\n", ["line 4", "field id"]),
        (HEADER + "a,0,1d,4,,,\na,0,1d,4,,,\n", ["line 3", "field id", "'a'"]),
        (HEADER + "a,0,1d,4,,,3h\n", ["line 2", "field gaps", "3h"]),
        (HEADER + "a,0,1d,4,,,2h-2d\n", ["line 2", "gaps"]),
        (HEADER + "a,0,1d,4,x,,\n", ["line 2", "field alignment"]),
        (HEADER + "a,0,1d,4,8,4,\n", ["line 2", "multiple of its alignment 8"]),
        ("id,lower,upper,size\na,1d,2d,4\n", ["line 2", "field lower", "whole number"]),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path: Path, text: str, says: list[str]) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    sentence = kant("plan", "calendar", path).refusal()
    assert "bad.csv" in sentence and all(part in sentence for part in says), sentence


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--capacity", "0"], "capacity"),
        (["--capacity", "2.5"], "whole number"),
        (["--limit", "0s"], "--limit"),
        (["--limit", "soon"], "--limit"),
    ],
)
def test_bad_options_are_refused(week: Path, arguments: list[str], says: str) -> None:
    assert says in kant("plan", "calendar", week, *arguments).refusal()


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name, said in (("nothing.csv", "a file that exists"), ("bytes", "text in UTF-8"), (".", "a regular file")):
        assert f"expected {said}" in kant("plan", "calendar", tmp_path / name).refusal()
