"""Files: a new one replaces the old one whole, or not at all."""

from __future__ import annotations

import gzip
import os
import stat
from pathlib import Path

import pytest

from kant.files import read_bytes, replacing, write_bytes
from kant.model.errors import InputError


def test_a_file_is_replaced_once_it_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(path) as out:
        out.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_stays_as_it_was_where_the_new_one_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), replacing(path) as out:
        out.write(b"new")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as raised:
        write_bytes(tmp_path / "file" / "new", b"")
    assert raised.value.filename == str(tmp_path / "file" / "new")


def test_a_replaced_file_has_the_permissions_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    mask = os.umask(0o022)
    try:
        with replacing(path, 0o600) as out:
            out.write(b"new")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with replacing(path) as out:
            out.write(b"new")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "far" / "file")
    write_bytes(link, b"new")
    assert link.is_symlink() and (tmp_path / "far" / "file").read_bytes() == b"new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_bytes(pipe, b"sent")
    assert os.read(reader, 100) == b"sent" and pipe.is_fifo()
    os.close(reader)


def test_a_packed_file_reads_as_a_plain_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(b"content"))
    assert read_bytes(path) == b"content"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="a whole gzip file"):
        read_bytes(path)
