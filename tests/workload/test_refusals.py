"""Input that cannot be used gives one InputError that names the place: never anything else."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.examples import examples, part

from kant.model.errors import InputError
from kant.workload.convert import write_workload
from kant.workload.formats import FORMATS
from kant.workload.generate import generate
from kant.workload.read import read_workload
from kant.workload.workload import Workload

Put = Callable[[str, str | bytes], Path]

ROW = " ".join(["1"] * 18)
KANT_HEAD = "submit_s,runtime_s,gpus"

NOISE = random.Random(1).randbytes(9000)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "expected a trace with at least one job, got 'an empty file'"),
        ("hello\n", "expected a trace of one of the formats kant, philly, philly-log, "),
        ("submit_s,duration_s,gpus,vc\n", "expected a trace with at least one job"),
        ("submit_s,duration_s,gpus,vc\n1,2,3,a\n1,x,3,a\n", "line 3, field duration_s: expected seconds"),
        ("submit_s,duration_s,gpus,vc\n1,2,0,a\n", "line 2, field gpus: expected a whole number from 1"),
        ("submit_s,duration_s,gpus,vc\n1,2,1.5,a\n", "line 2, field gpus: expected a whole number"),
        ("submit_s,duration_s,gpus,vc\n1,nan,1,a\n", "line 2, field duration_s"),
        ("submit_s,duration_s,gpus,vc\n1,1e999,1,a\n", "line 2, field duration_s"),
        ("submit_s,duration_s,gpus,vc\n-1,2,1,a\n", "line 2, field submit_s: expected seconds from 0"),
        ("submit_s,duration_s,gpus,vc\n1,2,1,\n", "line 2, field vc: expected a text that is not empty"),
        ("submit_s,duration_s,gpus,vc\n1,2,1\n", "line 2: expected 4 cells, got 3"),
        ('submit_s,duration_s,gpus,vc\n\n1,2,1,"a\n', "line 3: expected a row of CSV"),
        ("submit_s,duration_s,gpus,vc\n1,2,1_0,a\n", "line 2, field gpus"),
        (b"submit_s,duration_s,gpus,vc\n1,2,1,\xff\n", "expected text in UTF-8"),
        ("a,submit_s,duration_s,gpus,vc,a\n1,1,1,1,1,1\n", "line 1: expected each column once"),
        (KANT_HEAD + ",colour\n1,1,1,red\n", r"line 1: expected only the columns .*, got 'colour'"),
        (KANT_HEAD + ",id\n1,1,1,a\n2,1,1,a\n", "field id: expected each identifier once, got 'a'"),
        (KANT_HEAD + ",pods\n1,1,10000,10000\n", "job 0, fields gpus and pods: expected at most"),
        (KANT_HEAD + ",gpu_milli\n1,1,1,0\n", "line 2, field gpu_milli"),
        (KANT_HEAD + ",pods,floor\n1,1,1,3,2\n1,1,1,2,3\n", "job 1, field floor: expected at most its 2 pods, got 3"),
        (KANT_HEAD + ",pods,floor,apart\n1,1,1,3,2,leaf\n", "job 0, fields floor and apart: expected one of them"),
        (KANT_HEAD + ",floor\n1,1,8,1\n", "job 0, field floor: expected at most its 0 pods, got 1"),
        (KANT_HEAD + ",within\n1,1,1,leaf\n1,1,1,rack\n",
         "job 1, field within: expected node, hbd, leaf, spine, superspine, or nothing, got 'rack'"),
        (KANT_HEAD + ",segment,segment_within\n1,1,1,4,row\n",
         "job 0, field segment_within: expected node, hbd, leaf, spine, superspine, or nothing, got 'row'"),
        (KANT_HEAD + ",segment\n1,1,1,4\n", "job 0, fields segment and segment_within: expected both or neither"),
        (KANT_HEAD + ",near\n1,1,1,leaf\n", "job 0, fields near and affinity_group: expected the name of a group"),
        (KANT_HEAD + ",apart,segment,segment_within\n1,1,1,leaf,2,leaf\n",
         "job 0, fields apart and segment: expected one of them"),
        (KANT_HEAD + ",within_required\n1,1,1,2\n", "line 2, field within_required: expected a whole number"),
        ("submit_s,runtime_s\n1,1\n", "line 1: expected the columns gpus"),
        ("trace,job_id,num_gpu,submit_time,iterations,iteration_time\na,1,1,1,999999999999,999999999999\n",
         "job 1, fields iterations and iteration_time: expected a run time of at most"),
        ("trace,job_id,num_gpu,submit_time,iterations,iteration_time\na,1,1,1,1,1\na,1,1,1,1,1\n",
         "field job_id: expected each identifier once"),
        ("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,0\n", "pod p, field gpu_milli: expected a"),
        (f"; c\n{ROW}\n\n1 2 3\n", "line 4: expected 18 numbers, got '1 2 3'"),
        (f"; c\n{ROW}\n{ROW[:-1]}x\n", "line 3, field think_time"),
        (f"{ROW}\n1 2 3 4 -7 {' '.join(['1'] * 13)}\n", "line 2, field allocated: expected a whole number"),
        (f"{ROW}\n1 2-3 {' '.join(['1'] * 16)}\n", "line 2, field submit"),
        (f"{ROW}\n1 1e300 {' '.join(['1'] * 16)}\n", "line 2, field submit"),
        ("; only a comment\n", "expected a trace with at least one job"),
        (b"PAR1" + b"\0" * 40 + b"PAR1", "expected a whole Parquet file"),
        (gzip.compress(b"submit_s,duration_s,gpus,vc\n" + NOISE, mtime=0)[:4000], "a whole gzip file"),
        (gzip.compress(b"submit_s,duration_s,gpus,vc\n1,2,3,a\n", mtime=0)[:-6], "expected a whole gzip file"),
    ],
)  # fmt: skip
def test_the_error_names_the_place(put: Put, content: str | bytes, sentence: str) -> None:
    path = put("trace", content)
    with pytest.raises(InputError, match=sentence) as caught:
        read_workload(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_places_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "none", tmp_path / "pipe", Path("a\0b"), tmp_path / ("x" * 300)):
        with pytest.raises(InputError):
            read_workload(path)


def _read_or_refuse(path: Path, format: str | None) -> Workload | None:
    try:
        return read_workload(path, format=format)
    except InputError as error:
        assert "\n" not in str(error)
        return None


FORMAT = st.sampled_from([None, *FORMATS])
SEEDS = {
    "philly": b"submit_s,duration_s,gpus,vc\n1,2,8,6214e9\n3.5,4,1,b\n",
    "muri": b"trace,job_id,num_gpu,submit_time,iterations,model_name,iteration_time\nt,1,8,1000,7,gpt2,33\n",
    "openb": b"name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np1,8000,30517,1,470,A10|T4\n",
    "swf": b"; MaxJobs: 1\n1 0 0 222 80 -1 -1 80 14400 1200000 1 1 1 -1 1 -1 -1 -1\n" * 3,
    "kant": b"id,submit_s,runtime_s,gpus,limit_s,queue\na,1.000001,2,8,,q\nb,2,3,1,60,r\n",
    "gzip": gzip.compress(b"submit_s,runtime_s,gpus\n1,2,3\n", mtime=0),
}
SPLICES = st.sampled_from(
    [b"", b"9" * 25, b"-1", b"nan", b"inf", b"1e400", b"1e-400", b",", b'"', b"\n", b"\r", b"\0", b";",
     b"\xff\xfe", b"\xef\xbb\xbf", b".", b"e", b" ", b"0x1", "\u0661".encode(), b"\n\n\n"]
)  # fmt: skip


@example(content=b"\r\x00", format="pai")
@given(content=st.binary(max_size=400), format=FORMAT)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, format: str | None) -> None:
    path = tmp_path / "junk"
    path.write_bytes(content.replace(b"PAR1", b"PAR2"))
    _read_or_refuse(path, format)


@given(
    seed=st.sampled_from(sorted(SEEDS)),
    cuts=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9), SPLICES), max_size=4),
    format=FORMAT,
)
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files_are_read_or_refused(
    tmp_path: Path, seed: str, cuts: list[tuple[float, int, bytes]], format: str | None
) -> None:
    content = SEEDS[seed]
    for place, width, splice in cuts:
        at = int(place * len(content))
        content = content[:at] + splice + content[at + width :]
    path = tmp_path / "damaged"
    path.write_bytes(content)
    jobs = _read_or_refuse(path, format)
    if jobs is not None:
        assert jobs.submit[0] >= 0
        assert (jobs.submit[1:] >= jobs.submit[:-1]).all()
        assert (jobs.runtime >= 0).all()
        assert (jobs.total_gpus <= 10**7).all()
        assert len(set(jobs.ids)) == len(jobs.ids)


@pytest.mark.long
def test_damaged_parquet_is_read_or_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Some of these abort the decoder's process; that must stay its own affair."""
    path = tmp_path / "a.parquet"
    write_workload(generate("pai", jobs=40, days=1), path)
    whole = path.read_bytes()
    refused = 0
    for i in part(range(12), 0):
        at = 4 + (len(whole) - 8) * i // 12
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF, whole[at + 1] ^ 0x55]) + whole[at + 2 :])
        refused += _read_or_refuse(path, None) is None
    path.write_bytes(whole[: len(whole) // 2])
    assert _read_or_refuse(path, None) is None
    assert refused >= 1
    assert capfd.readouterr() == ("", "")
