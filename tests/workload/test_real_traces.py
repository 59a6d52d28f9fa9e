"""The public traces: how many jobs there are, and facts that others published about them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kant.model.errors import InputError
from kant.model.units import DAY, SECOND
from kant.workload.describe import describe
from kant.workload.read import read_workload

pytestmark = pytest.mark.long

DataFile = Callable[[str], Path]
WINDOW = (27 * DAY, 88 * DAY)


def test_philly(data_file: DataFile) -> None:
    path = data_file("philly_jobs.csv.gz")
    jobs = read_workload(path, slice="6214e9", window=WINDOW)
    assert int((jobs.total_gpus <= 256).sum()) == 33_950
    assert jobs.origin == 2_332_845 * SECOND
    assert len(read_workload(path)) == 60_787
    vcs = {"6214e9", "b436b2", "ee9e8c", "7f04ca", "6c71a0", "0e4a51", "e13805", "ed69ec", "103959"}
    every = read_workload(path, window=WINDOW)
    assert sum(every.queues[code] in vcs for code in every.queue) == 56_291


@pytest.mark.parametrize(("trace", "count"), [("trace1", 1494), ("trace3", 992)])
def test_muri(data_file: DataFile, trace: str, count: int) -> None:
    jobs = read_workload(data_file("muri_traces_1_3.csv.gz"), slice=trace)
    assert len(jobs) == count
    assert set(jobs.gpus.tolist()) <= {1, 2, 4, 8, 16, 32}
    assert set((jobs.overhead // SECOND).tolist()) <= {4, 5, 6, 7, 8, 9, 10, 38, 39, 46}


def test_openb(data_file: DataFile) -> None:
    path = data_file("openb_pods.csv.gz")
    jobs = read_workload(path, slice="default")
    assert len(jobs) == 8152
    assert int((jobs.gpus * jobs.milli).sum()) == 6_086_800
    with pytest.raises(InputError, match="cpu050, default, gpushare40, multigpu20"):
        read_workload(path)


def test_ricc(data_file: DataFile) -> None:
    jobs = read_workload(data_file("RICC-2010-2.swf.gz"))
    dropped = sum(int(note.split()[0]) for note in jobs.notes)
    assert len(jobs) + dropped == 447_794
    assert int(jobs.total_gpus.max()) <= 8192
    assert np.all(jobs.submit[1:] >= jobs.submit[:-1])
    assert describe(jobs)["jobs_with_limit"] == 447_792  # two ask for 0 seconds: no limit


READ_AND_REPORT = """
import sys
from pathlib import Path
from kant.sim.run import peak_rss_mib
from kant.workload.read import read_workload
read_workload(Path(sys.argv[1]))
print(peak_rss_mib())
"""


def test_ricc_is_read_in_little_memory(data_file: DataFile) -> None:
    """In under 400 MiB, the interpreter and the compiler included."""
    command = [sys.executable, "-c", READ_AND_REPORT, str(data_file("RICC-2010-2.swf.gz"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 400
