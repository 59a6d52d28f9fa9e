"""`kant simulate --reservations`: what is booked is nobody else's, and the journal says so to all that read it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import kant

JOBS = "id,submit_s,runtime_s,gpus,limit_s\nlong,0,3600,8,7200\nshort,60,1800,8,3000\nlast,120,60,4,60\n"
PROFILE = """
name = "limits"
order = {policy = "fifo"}
discipline = {policy = "DISCIPLINE"}
placement = {policy = "best-fit"}
[simulation]
enforce_limits = true
"""
WEEK = "id,start,end,gpus\ncourse,1h,3h,8\n"


def test_it_is_nobody_elses_and_every_reader_of_the_journal_knows(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "week.csv").write_text(WEEK)
    for discipline in ("easy", "conservative", "best-effort", "backfill"):
        out, profile = tmp_path / discipline, tmp_path / f"{discipline}.toml"
        profile.write_text(PROFILE.replace("DISCIPLINE", discipline))
        given = ("simulate", tmp_path / "jobs.csv", "--cluster", "1x8", "--profile", profile)
        made = kant(*given, "--reservations", tmp_path / "week.csv", "--out", out, "--json").json()
        assert (made["completed"], made["preemptions"]) == (3, 0)
        journal = out / "journal.jsonl"
        assert "equal" in kant("replay", journal).out
        again = kant("replay", journal, "--profile", profile, "--json").out
        assert made["digest"] in again
        for at, running in (("90s", ["short"]), ("2h", []), ("190m", ["long"])):
            found = kant("plan", "calendar", journal, "--at", at, "--json").json()
            assert [each["id"] for each in found["bookings"] if each["kind"] == "running"] == running
            assert [each["id"] for each in found["bookings"] if each["kind"] == "booked"] == ["course"] * (at != "190m")
            assert found["collide"] == []
        assert (
            "the free GPUs are booked by reservation course from 0d 01:00:00 on"
            in kant("why", "long", journal, "--at", "50m").out
        )


def test_a_week_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "week.csv").write_text(WEEK + "lab,2h,4h,1\n")
    given = ("simulate", tmp_path / "jobs.csv", "--cluster", "1x8", "--reservations", tmp_path / "week.csv")
    assert "booking lab: expected adjacent GPUs that are free" in kant(*given).refusal()
    (tmp_path / "week.csv").write_text("id,lower,upper,size\na,0,1,1\n")
    assert "the columns id, start, end and gpus" in kant(*given).refusal()
