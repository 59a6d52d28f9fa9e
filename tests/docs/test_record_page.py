"""docs/record.md names every key and column of the record, and its bounds."""

from __future__ import annotations

from tests.docs.pages import ROOT, words_in_backticks

from kant.live.record import RunRecord
from kant.live.record.lasting_record import STARTS
from kant.live.record.tables import CHANGES, JOBS, PIECES
from kant.live.samples import SAMPLES
from kant.live.sentences import KEPT
from kant.service.past import MOST_BYTES, MOST_JOURNALS
from kant.service.views import Entry, History, RecordAnswer
from kant.testing import Harness, make_cluster

PAGE = ROOT / "docs" / "record.md"


def test_the_page_names_all_that_the_record_has() -> None:
    found = RunRecord(Harness(make_cluster(8)).state, "r").since("", 0)
    names = {*RecordAnswer.__struct_fields__, *History.__struct_fields__, *Entry.__struct_fields__} - {"job"}
    for key in ("jobs", "intervals", "nodes", "series", "cluster"):
        names |= set(found[key])
    words = set(words_in_backticks(PAGE))
    assert {name for name in names - {"row", "job"} if name not in words} == set()
    assert set(found) | {"kind"} == set(RecordAnswer.__struct_fields__)


def test_the_page_says_the_bounds() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for bound in (JOBS, PIECES, CHANGES, SAMPLES):
        assert f"{bound:,}" in text
    assert f"At most {KEPT} are kept of a job" in text
    assert f"the latest {MOST_JOURNALS}, of at most {MOST_BYTES >> 20} MiB together" in text
    assert f"the latest {STARTS} moments" in text
