"""The folder of journals: what it may take, and what happens where nothing can be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from kant.live import journals
from kant.live.journals import Journals

LINE = b"x" * 999 + b"\n"


def test_journals_take_no_more_than_they_may(tmp_path: Path) -> None:
    kept = Journals(tmp_path, most_bytes=40_000)
    names = []
    for _ in range(12):
        write = kept.open()
        assert kept.path is not None
        names.append(kept.path.name)
        while not kept.wants_new_file():
            write(LINE)
            kept.flush()
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 40_000
    kept.close()
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == names[-len(found) :] and len(found) == 4


def test_without_a_limit_nothing_is_removed(tmp_path: Path) -> None:
    kept = Journals(tmp_path)
    for _ in range(5):
        kept.open()(LINE)
    kept.close()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [LINE] * 5 and not kept.wants_new_file()


def test_a_folder_that_cannot_be_written_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "RETRY", 0.0)
    told: list[Exception] = []
    folder = tmp_path / "journals"
    folder.write_text("a file in the way")
    kept = Journals(folder, told.append)
    kept.open()(LINE)
    assert kept.path is None and kept.trouble and len(told) == 1 and not kept.wants_new_file()
    folder.unlink()
    assert kept.wants_new_file()
    kept.open()(LINE)
    kept.close()
    assert not kept.trouble and [path.read_bytes() for path in folder.iterdir()] == [LINE]


def test_a_disk_that_is_too_small_gives_up_its_oldest_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "RETRY", 0.0)
    kept = Journals(tmp_path, most_bytes=1 << 30)
    for _ in range(2):
        kept.open()(LINE)
    kept.close()
    kept.trouble = "the disk is full"

    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    before = sorted(tmp_path.iterdir())
    assert not kept.wants_new_file()
    assert sorted(tmp_path.iterdir()) == before[1:]
