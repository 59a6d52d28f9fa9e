"""An identifier that occurs twice is refused in one sentence, or the later jobs get names of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.model.errors import InputError
from kant.optimize.calendar.file import read_calendar
from kant.workload.kubernetes_pods import read_pods
from kant.workload.read import read_workload
from kant.workload.table import made_unique
from kant.workload.workload import Workload

HELIOS = "job_id,user,gpu_num,cpu_num,node_num,state,submit_time,duration,vc\n"
ACME = "job_id,user,gpu_num,cpu_num,node_num,state,submit_time,duration,type\n"
LOGGED = "{0},u,{1},1,1,COMPLETED,2020-04-01 00:00:00,4,v\n"


SWF = ((7, 2), (7, 4), (7, 1), (7, 0))  # two parts of a job, its own line, and another job of that number


def logged(header: str, *jobs: tuple[str, int]) -> str:
    return header + "".join(LOGGED.format(name, gpus) for name, gpus in jobs)


def philly(*names: str) -> str:
    attempt = {
        "start_time": "2017-10-09 07:02:00", "end_time": "2017-10-09 07:03:00", "detail": [{"ip": "m", "gpus": ["g"]}],
    }  # fmt: skip
    job = {"vc": "v", "submitted_time": "2017-10-09 07:01:55", "attempts": [attempt], "user": "u", "status": "Pass"}
    return json.dumps([{**job, "jobid": name} for name in names])


TWICE = {
    "kant": ("id,submit_s,runtime_s,gpus\na,0,1,1\n\nb,0,1,1\na,1,1,1\n", "line 5, field id", "a"),
    "helios": (logged(HELIOS, ("0", 0), ("1", 1), ("2", 1), ("1", 2)), "line 5, field job_id", "1"),
    "acme": (logged(ACME, ("1", 1), ("2", 1), ("2", 2)), "line 4, field job_id", "2"),
    "philly-log": (philly("a", "b", "a"), "job 3 of the list, field jobid", "a"),
    "muri": (
        "trace,job_id,num_gpu,submit_time,iterations,iteration_time\na,1,1,1,1,1\nb,1,1,1,1,1\na,1,1,1,1,1\n",
        "line 4, field job_id",
        "a/1",
    ),
    "swf": (
        "".join(f"{job} 0 0 9 1 -1 -1 1 9 -1 {status} 1 1 -1 1 -1 -1 -1\n" for job, status in SWF),
        "line 4, field job",
        "7",
    ),
    "openb": (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,1000\nq,1,1,1,1000\nq,1,1,1,1000\n",
        "line 4, field name",
        "q",
    ),
}


@pytest.mark.parametrize("format", TWICE)
def test_a_repeated_identifier_is_refused_by_file_line_and_identifier(format: str, tmp_path: Path) -> None:
    content, place, name = TWICE[format]
    path = tmp_path / "trace"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_workload(path, format=format)
    said = str(caught.value)
    assert said.startswith(f"{path}, {place}: expected ") and "\n" not in said
    assert said.endswith(f"got '{name}'") or f"/{name}'" in said


def test_jobs_that_are_left_out_may_share_an_identifier(tmp_path: Path) -> None:
    """They never ran on a GPU, so they are no jobs of the workload."""
    path = tmp_path / "trace"
    path.write_text(logged(HELIOS, ("1", 0), ("1", 1), ("1", 0)))
    assert read_workload(path, format="helios").ids == ["1"]


@given(st.lists(st.sampled_from(["a", "b", "a.2", "a.3", "a.2.2"]), max_size=12))
def test_names_that_are_made_unique_are_and_keep_what_was_unique(names: list[str]) -> None:
    found = made_unique(names, ".")
    assert len(set(found)) == len(found) == len(names)
    for at, (name, own) in enumerate(zip(names, found, strict=True)):
        assert own == name if name not in names[:at] else own.startswith(f"{name}.")


def pod(name: str, uid: str, created: str, group: str = "") -> str:
    meta = {"name": name, "namespace": "n", "uid": uid, "creationTimestamp": created, "labels": {}}
    if group:
        meta["labels"] = {"pod-group.scheduling.sigs.k8s.io": group}
    state = {"terminated": {"finishedAt": "2026-01-03T00:00:00Z"}}
    status = {"phase": "Succeeded", "startTime": created, "containerStatuses": [{"state": state}]}
    spec = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    return json.dumps({"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec, "status": status})


def test_a_pod_that_comes_again_gets_no_name_of_another_pod(tmp_path: Path) -> None:
    """The second `x` would be `x.2`, which is the name of another pod."""
    path = tmp_path / "pods.json"
    days = [pod("x", "1", "2026-01-01T00:00:00Z"), pod("x.2", "2", "2026-01-01T12:00:00Z")]
    path.write_text("\n".join([*days, pod("x", "3", "2026-01-02T00:00:00Z")]) + "\n")
    found: Workload = read_pods(path)
    assert sorted(found.ids) == ["n/x", "n/x.2", "n/x.3"]


def test_a_booking_of_one_calendar_of_several_has_a_name_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "calendar.csv"
    rows = ["instance,id,start,end,gpus", "one,a,0h,1h,1", "two,a,0h,1h,1", "two,b,0h,1h,1", "two,a,2h,3h,1"]
    path.write_text("\n".join(rows) + "\n")
    with pytest.raises(InputError, match="line 5, field id: expected a name that no other row has, got 'a'"):
        read_calendar(path, "two")


PAI_TASKS = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"


def test_a_job_table_of_pai_says_one_thing_of_a_job(tmp_path: Path) -> None:
    tasks, jobs = tmp_path / "pai_task_table.csv", tmp_path / "pai_job_table.csv"
    tasks.write_text(PAI_TASKS + "j,w,1,Terminated,10.0,20.0,100.0,1.0,100.0,V100\n")
    header = "job_name,inst_id,user,status,start_time,end_time\n"
    jobs.write_text(header + 2 * "j,i,u,Terminated,5.0,20.0\n")
    assert read_workload(tasks, format="pai").ids == ["j/w"]
    jobs.write_text(header + "j,i,u,Terminated,5.0,20.0\nj,i,u,Terminated,7.0,20.0\n")
    with pytest.raises(InputError, match="line 3, field job_name: expected each job once, got 'j'"):
        read_workload(tasks, format="pai")
