"""The logs of clusters in the layouts in which they were published, on files of a few lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.command import kant

from kant.model.errors import InputError
from kant.model.units import SECOND
from kant.workload.formats import detect
from kant.workload.read import read_workload
from kant.workload.workload import Workload

Put = Callable[[str, str | bytes], Path]

HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,16,63,2,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
1425513,uzqls,vchbv,0,8,1,COMPLETED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0
1425514,uzqls,vcpDC,9,1,2,CANCELLED,2020-06-09 18:41:30,2020-06-09 18:41:40,2020-06-09 18:42:40,60,10
1425515,uzqls,vcpDC,1,1,1,CANCELLED,2020-06-09 18:41:31,,,0,0
"""

SEREN = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
5778432,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,{start},2023-03-01 00:20:51+08:00,117,32,936.0
5778469,u5907,16,128,2048,Pretrain,COMPLETED,2023-03-01 00:23:58+08:00,{start},2023-03-01 01:09:04+08:00,2693,13,3e5
""".replace("{start}", "2023-03-01 00:18:54+08:00")

KALOS = ",".join(
    ("job_id", "user", "node_num", "gpu_num", "cpu_num", "mem_per_pod_GB", "shared_mem_per_pod", "type", "state",
     "submit_time", "start_time", "end_time", "fail_time", "stop_time", "duration", "queue", "gpu_time")
) + "\n" + ",".join(
    ("dlctk696s0jbvitv", "uf794", "8", "64", "960", "1000", "100.0", "Other", "FAILED", "2023-05-17 11:00:58+00:00",
     "2023-05-17 11:01:08+00:00", "2023-05-17 11:01:16+00:00", "2023-05-17 11:01:16+00:00", "", "18", "10.0", "1152.0")
) + "\n"  # fmt: skip

PHILLY = [
    {
        "status": "Pass", "vc": "ee9e8c", "jobid": "application_1506638472019_14199", "user": "ce2f4c",
        "submitted_time": "2017-10-07 01:11:39",
        "attempts": [
            {"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 01:13:23",
             "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}]},
            {"start_time": "2017-10-07 01:13:30", "end_time": "2017-10-07 01:23:30",
             "detail": [{"ip": "m412", "gpus": ["gpu0", "gpu1"]}, {"ip": "m7", "gpus": ["gpu5"]}]},
        ],
    },
    {"status": "Killed", "vc": "6214e9", "jobid": "application_2", "user": "a", "submitted_time": "2017-10-07 01:11:40",
     "attempts": []},
    {"status": "Failed", "vc": "6214e9", "jobid": "application_3", "user": "a", "submitted_time": "2017-10-07 01:11:49",
     "attempts": [{"start_time": "2017-10-07 01:12:09", "end_time": None, "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}]},
    {"status": "Pass", "vc": "6214e9", "jobid": "application_4", "user": "a", "submitted_time": "2017-10-07 01:11:29",
     "attempts": [{"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 01:12:10",
                   "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}]},
]  # fmt: skip

TASKS = """\
4f057009a5d481acec67b088,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.296875,50.0,MISC
20a1b,worker,4.0,Failed,1739170.5,1739270.0,400.0,16.0,100.0,V100
20a1b,ps,1.0,Failed,1739170.5,1739270.0,600.0,16.0,,
20a1c,worker,2.0,Terminated,1739180.0,1739190.0,600.0,,150.0,T4
20a1d,worker,2.0,Waiting,,,600.0,,100.0,T4
"""
JOBS = """\
4f057009a5d481acec67b088,8cb3bec2,58540f191766,Terminated,1739100.0,1739200.0
20a1b,8cb3bec3,58540f191767,Failed,1739169.0,1739270.0
"""

EVENTS = [
    {"time": "0", "type": "0", "collection_id": "7", "instance_index": "0", "priority": "103",
     "resource_request": {"cpus": 0.02, "memory": 0.5}, "collection_type": "0"},
    {"time": "1000000", "type": "SCHEDULE", "collection_id": "7", "instance_index": "0", "priority": "103"},
    {"time": "3000000", "type": "4", "collection_id": "7", "instance_index": "0", "priority": "103"},
    {"time": "4000000", "type": "3", "collection_id": "7", "instance_index": "0", "priority": "103"},
    {"time": "5000000", "type": "0", "collection_id": "8", "instance_index": "1", "priority": "200",
     "resource_request": {"cpus": 0.001, "memory": 0.25}},
    {"time": "5000000", "type": "0", "collection_id": "9", "instance_index": "0", "priority": "0",
     "collection_type": "1"},
    {"time": "5000000", "type": "0", "collection_id": "10", "instance_index": "0", "priority": "0"},
    {"time": "6000000", "type": "3", "collection_id": "8", "instance_index": "1", "priority": "200"},
    {"time": "7000000", "type": "6", "collection_id": "7", "instance_index": "0", "priority": "103"},
    {"time": "9223372036854775807", "type": "6", "collection_id": "8", "instance_index": "1", "priority": "200"},
]  # fmt: skip


def queues(jobs: Workload) -> list[str]:
    return [jobs.queues[code] for code in jobs.queue]


def users(jobs: Workload) -> list[str]:
    return [jobs.users[code] for code in jobs.user]


def test_helios(put: Put) -> None:
    path = put("cluster_log.csv", HELIOS)
    assert detect(path).name == "helios"
    jobs = read_workload(path)
    assert jobs.ids == ["1425511", "1425512", "1425514"]
    assert jobs.submit.tolist() == [0, 26 * SECOND, 29 * SECOND]
    assert jobs.origin == 1591728061 * SECOND  # 2020-06-09 18:41:01 UTC
    assert jobs.runtime.tolist() == [36848 * SECOND, 249 * SECOND, 60 * SECOND]
    assert jobs.gpus.tolist() == [1, 8, 9] and jobs.pods.tolist() == [1, 2, 0]  # 9 GPUs of 2 nodes: the total alone
    assert jobs.cpu.tolist() == [1000, 31_500, 500]
    assert queues(jobs) == ["vcJkd", "vchbv", "vcpDC"] and users(jobs) == ["uXBbc", "uVMrF", "uzqls"]
    assert jobs.notes == ("1 jobs left out: they never ran", "1 jobs left out: they have no GPU")
    assert read_workload(path, slice="vchbv").ids == ["1425512"]


def test_acme_of_both_clusters(put: Put) -> None:
    path = put("trace_seren.csv", SEREN)
    assert detect(path).name == "acme"
    jobs = read_workload(path)
    assert jobs.origin == 1677601102 * SECOND  # 00:18:22 at UTC+8
    assert jobs.submit.tolist() == [0, 336 * SECOND] and jobs.runtime.tolist() == [117 * SECOND, 2693 * SECOND]
    assert jobs.pods.tolist() == [1, 16] and jobs.gpus.tolist() == [8, 8] and jobs.cpu.tolist() == [128_000] * 2
    assert queues(jobs) == ["Other", "Pretrain"]
    kalos = read_workload(put("trace_kalos.csv", KALOS))
    assert kalos.pods.tolist() == [8] and kalos.gpus.tolist() == [8] and kalos.memory.tolist() == [1000 * 1024]


def test_philly_as_published(put: Put) -> None:
    path = put("cluster_job_log", json.dumps(PHILLY, indent=4))
    assert detect(path).name == "philly-log"
    jobs = read_workload(path)
    assert jobs.ids == ["application_4", "application_1506638472019_14199"]
    assert jobs.submit.tolist() == [0, 10 * SECOND]
    assert jobs.runtime.tolist() == [SECOND, (74 + 600) * SECOND]  # both attempts
    assert jobs.gpus.tolist() == [1, 3] and jobs.pods.tolist() == [0, 0]
    assert queues(jobs) == ["6214e9", "ee9e8c"] and jobs.notes == ("2 jobs left out: they never ran",)


@pytest.mark.parametrize("header", [False, True])
def test_pai(put: Put, header: bool) -> None:
    names = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    path = put("pai_task_table.csv", names * header + TASKS)
    assert detect(path).name == "pai"
    alone = read_workload(path)
    assert alone.submit.tolist() == [0, 8_500_000, 18_000_000] and users(alone) == ["", "", ""]
    assert "no pai_job_table.csv next to it" in alone.notes[-1]
    put("pai_job_table.csv", ("job_name,inst_id,user,status,start_time,end_time\n" * header) + JOBS)
    jobs = read_workload(path)
    assert jobs.ids == ["4f057009a5d481acec67b088/tensorflow", "20a1b/worker", "20a1c/worker"]
    assert jobs.submit.tolist() == [0, 69 * SECOND, 80 * SECOND]
    assert users(jobs) == ["58540f191766", "58540f191767", ""]
    assert jobs.runtime.tolist() == [38 * SECOND, 99_500_000, 10 * SECOND]
    assert (
        jobs.gpus.tolist() == [1, 1, 2] and jobs.milli.tolist() == [500, 1000, 750] and jobs.pods.tolist() == [1, 4, 2]
    )
    assert jobs.cpu.tolist() == [6000, 4000, 6000] and jobs.memory.tolist() == [30_000, 16_384, 0]
    assert jobs.notes == ("1 jobs left out: they never ran", "1 jobs left out: they have no GPU")


@pytest.mark.parametrize("form", ["json", "csv"])
def test_google(put: Put, form: str) -> None:
    if form == "json":
        path = put("instance_events-000.json", "".join(json.dumps(event) + "\n" for event in EVENTS))
    else:
        names = ["time", "type", "collection_id", "instance_index", "priority", "collection_type"]
        rows = [",".join([*names, "resource_request.cpus", "resource_request.memory"])]
        for event in EVENTS:
            request = event.get("resource_request", {})
            cells = [event.get(name, "") for name in names] + [request.get(part, "") for part in ("cpus", "memory")]
            rows.append(",".join(map(str, cells)))
        path = put("events.csv", "\n".join(rows) + "\n")
    assert detect(path).name == "google"
    jobs = read_workload(path)
    assert jobs.ids == ["7/0", "8/1"] and jobs.submit.tolist() == [0, 5 * SECOND]
    assert jobs.runtime.tolist() == [5 * SECOND, SECOND]  # evicted between, and cut by the end of the slice
    assert jobs.cpu.tolist() == [2000, 100] and jobs.memory.tolist() == [1 << 19, 1 << 18]
    assert jobs.gpus.tolist() == [0, 0] and jobs.priority.tolist() == [103, 200]
    assert queues(jobs) == ["batch", "production"]
    assert jobs.notes == (
        "1 tasks left out: they never ran", "1 tasks still run: they count with their run time so far",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "h.csv",
            HELIOS.replace("2020-06-09 18:41:27,2020", "yesterday,2020"),
            "line 3, field submit_time: expected a",
        ),
        ("h.csv", HELIOS.replace(",16,63", ",-1,63"), "line 3, field gpu_num"),
        ("a.csv", SEREN.replace(",117,", ",x,"), "line 2, field duration: expected seconds"),
        ("p", json.dumps(PHILLY).replace("2017-10-07 01:11:29", "soon"), "job application_4, submitted_time: expected"),
        ("p", json.dumps(PHILLY)[:-2], "a cluster_job_log of Philly"),
        ("t.csv", TASKS.replace("4.0,Failed", "four,Failed"), "line 2, field inst_num"),
        ("g.json", json.dumps(EVENTS[0]).replace('"0"', '"12"', 2), "line 1, field type: expected one of SUBMIT"),
        ("g.json", json.dumps(EVENTS[0]) + "\n{", "line 2: expected an object of JSON"),
        ("g.json", json.dumps(EVENTS[0]).replace("0.02", '"much"'), "field resource_request.cpus: expected a part"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(put: Put, name: str, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_workload(put(name, text))


@pytest.mark.parametrize(
    ("name", "text"), [("c.csv", HELIOS), ("s.csv", SEREN), ("p", json.dumps(PHILLY)), ("t.csv", TASKS)]
)
def test_each_runs_and_can_be_made_anonymous(put: Put, tmp_path: Path, name: str, text: str) -> None:
    path = put(name, text)
    assert kant("simulate", path, "--cluster", "16x8", "--json").json()["completed"] >= 1
    found = kant("trace", "convert", path, tmp_path / "out.csv", "--anonymous")
    assert found.code == 0
    written = (tmp_path / "out.csv").read_text()
    for secret in ("vcJkd", "uXBbc", "1425511", "u5907", "Pretrain", "ee9e8c", "ce2f4c", "application", "20a1b"):
        assert secret not in written
    before, after = read_workload(path), read_workload(tmp_path / "out.csv")
    assert before.submit.tolist() == after.submit.tolist() and before.gpus.tolist() == after.gpus.tolist()
