"""Each format on a small example: what lands in which column, windows, slices, gzip."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from kant.model.errors import InputError
from kant.model.units import SECOND
from kant.workload.read import read_workload
from kant.workload.swf import read_log

Put = Callable[[str, str | bytes], Path]

PHILLY = """submit_s,duration_s,gpus,vc
100,7,8,b436b2
50.0000015,60,1,6214e9
100,5,16,6214e9
300,1,2,6214e9
"""

MURI = """trace,job_id,num_gpu,submit_time,duration,iterations,model_name,iteration_time,priority
trace1,0,1,1000,9,3,vgg16,7,1
trace1,1,12,3000,9,5859661,a2c,491,1
trace2,0,64,500,9,10,nobody,2,0
trace1,2,3,3000,9,1,dqn,1,0
"""

OPENB = """\
workload,name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time
default,p1,8000,30517,0,0,,20.0,50.0,25.0
default,p0,4000,1024,1,470,A10|T4,10.0,40.0,
other,p0,1,2,8,1000,,5.0,,
default,p2,4000,1024,2,1000,,30.0,,31.0
"""

SWF = """; Computer: a test
;  MaxProcs: 64
;
  1   10  0  22.5  8 -1 -1  16 60 -1 1 3 1 -1 2 -1 -1 -1
  2   10  5  30   -1 -1 -1   4 -1 -1 1 4 1 -1 -1 -1 -1 -1

  3    9  0  -1    4 -1 -1   4 60 -1 0 3 1 -1 2 -1 -1 -1
  4   12  0   0    0 -1 -1  -1 60 -1 5 3 1 -1 2 -1 -1 -1
  5   13  0   5    1 -1 -1   1 60 -1 1 3 1 -1 2 -1 -1 -1
  5   13  0   2    1 -1 -1   1 60 -1 2 3 1 -1 2 -1 -1 -1
"""

KANT = """gpus,submit_s,runtime_s,pods,gpu_milli,queue,user,gpu_models,limit_s,id
8,2.5,10.000001,4,1000,prod,ann,A10|T4,3600,a
1,1,1e1,,250,,,,,b
"""


@pytest.mark.parametrize("packed", [False, True])
def test_philly(put: Put, packed: bool) -> None:
    content = gzip.compress(PHILLY.encode()) if packed else PHILLY
    jobs = read_workload(put("anything.txt", content))
    assert jobs.origin == 50_000_002  # half to even
    assert jobs.submit.tolist() == [0, 49_999_998, 49_999_998, 249_999_998]
    assert jobs.ids == ["1", "0", "2", "3"]
    assert jobs.runtime.tolist() == [60 * SECOND, 7 * SECOND, 5 * SECOND, SECOND]
    assert jobs.gpus.tolist() == [1, 8, 16, 2]
    assert jobs.pods.tolist() == [0] * 4
    assert [jobs.queues[code] for code in jobs.queue] == ["6214e9", "b436b2", "6214e9", "6214e9"]


def test_a_window_sets_the_clock_before_the_slice(put: Put) -> None:
    path = put("a.csv", PHILLY)
    jobs = read_workload(path, slice="6214e9", window=(100 * SECOND, 300 * SECOND))
    assert (jobs.ids, jobs.origin, jobs.submit.tolist()) == (["2"], 100 * SECOND, [0])
    jobs = read_workload(path, slice="6214e9", window=(60 * SECOND, 301 * SECOND))
    assert (jobs.ids, jobs.origin) == (["2", "3"], 100 * SECOND)
    with pytest.raises(InputError, match=r"a window that holds jobs"):
        read_workload(path, window=(301 * SECOND, 302 * SECOND))
    with pytest.raises(InputError, match=r"a window in which b436b2 has jobs"):
        read_workload(path, slice="b436b2", window=(200 * SECOND, 400 * SECOND))


def test_an_unknown_slice_lists_those_there_are(put: Put) -> None:
    with pytest.raises(InputError, match=r"virtual cluster that the file holds \(6214e9, b436b2\), got 'x'"):
        read_workload(put("a.csv", PHILLY), slice="x")


def test_muri(put: Put) -> None:
    path = put("m.csv", MURI)
    jobs = read_workload(path, slice="trace1")
    assert jobs.ids == ["0", "1", "2"]
    assert jobs.submit.tolist() == [0, 2 * SECOND, 2 * SECOND]
    assert jobs.runtime.tolist() == [21_000, 5859661 * 491 * 1000, 1000]
    assert jobs.overhead.tolist() == [7 * SECOND, 46 * SECOND, 5 * SECOND]  # 12 GPUs: the column of 8
    other = read_workload(path, slice="trace2")
    assert (other.origin, other.overhead.tolist()) == (SECOND // 2, [10 * SECOND])
    with pytest.raises(InputError, match="a choice of one trace: trace1, trace2"):
        read_workload(path)


def test_openb(put: Put) -> None:
    path = put("o.csv", OPENB)
    jobs = read_workload(path, slice="default")
    assert jobs.ids == ["p0", "p1", "p2"]
    assert jobs.submit.tolist() == [0, 10 * SECOND, 20 * SECOND]
    assert jobs.runtime.tolist() == [30 * SECOND, 25 * SECOND, 0]
    assert jobs.gpus.tolist() == [1, 0, 2]
    assert jobs.milli.tolist() == [470, 1000, 1000]
    assert jobs.pods.tolist() == [1, 1, 1]
    assert [jobs.model_sets[code] for code in jobs.models] == [("A10", "T4"), (), ()]
    assert jobs.cpu.tolist() == [4000, 8000, 4000]
    with pytest.raises(InputError, match="a choice of one workload: default, other"):
        read_workload(path)


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_swf(put: Put, end: str) -> None:
    content = SWF.rstrip("\n") if not end else SWF.replace("\n", end)
    jobs = read_workload(put("x.swf", content))
    assert jobs.ids == ["1", "2", "5"]
    assert jobs.runtime.tolist() == [22_500_000, 30 * SECOND, 5 * SECOND]
    assert jobs.pods.tolist() == [8, 4, 1]
    assert jobs.gpus.tolist() == [1, 1, 1]
    assert jobs.limit.tolist() == [60 * SECOND, -1, 60 * SECOND]
    assert [jobs.queues[code] for code in jobs.queue] == ["2", "default", "2"]
    assert [jobs.users[code] for code in jobs.user] == ["3", "4", "3"]
    assert jobs.memory.tolist() == [0, 0, 0]
    assert jobs.notes[0].startswith("2 jobs dropped")
    assert jobs.notes[1].startswith("1 lines dropped")


def test_every_column_of_swf_can_be_had(put: Put) -> None:
    log = read_log(put("x.swf", SWF))
    assert len(log.columns) == 18
    assert log.header == (("Computer", "a test"), ("MaxProcs", "64"))
    assert log.columns["requested"].tolist() == [16, 4, 4, -1, 1, 1]


def test_kant(put: Put) -> None:
    jobs = read_workload(put("k.csv", KANT))
    assert jobs.ids == ["b", "a"]
    assert jobs.origin == SECOND
    assert jobs.submit.tolist() == [0, 1_500_000]
    assert jobs.runtime.tolist() == [10 * SECOND, 10_000_001]
    assert jobs.pods.tolist() == [0, 4]
    assert jobs.milli.tolist() == [250, 1000]
    assert jobs.limit.tolist() == [-1, 3600 * SECOND]
    assert [jobs.queues[code] for code in jobs.queue] == ["default", "prod"]
    assert [jobs.model_sets[code] for code in jobs.models] == [(), ("A10", "T4")]


def test_kant_needs_three_columns_only(put: Put) -> None:
    jobs = read_workload(put("k.csv", "submit_s,runtime_s,gpus\n3,4,5\n"))
    assert (jobs.ids, jobs.queues, jobs.users, jobs.milli.tolist()) == (["0"], ("default",), ("",), [1000])


def test_a_format_that_is_named_is_used(put: Put) -> None:
    with pytest.raises(InputError, match=r"line 1: expected the columns duration_s, vc"):
        read_workload(put("k.csv", KANT), format="philly")
    with pytest.raises(InputError, match=r"one of kant, philly, .*, muri, openb, shockwave, swf, got 'csv'"):
        read_workload(put("k.csv", KANT), format="csv")
