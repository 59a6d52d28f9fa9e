"""What an OpenTelemetry collector hears of jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cli.command import kant as verb
from tests.collector import collecting
from tests.local.up import Up, eventually

from kant.live.otlp import headers, traces_url
from kant.local.record import JobPhase, JobRecord
from kant.model.submission import Submission
from kant.service.traces import Traces

PARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"


def test_a_job_is_a_trace_from_its_submission_to_its_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that Kant did not see begin; below the span of who has submitted it, above those of its run."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b, other=1")
    home, say = tmp_path / "home", "echo $TRACEPARENT; sleep 0.3; exit 3"
    with collecting(refuse=1) as collector:
        url = f"http://127.0.0.1:{collector.server.server_port}/v1/traces"
        with Up(home, traces=url) as kant:
            fails = kant.submit(say, name="fails", env={"TRACEPARENT": PARENT})
            assert kant.over(fails) == ["failed"]
            again = kant.submit("sleep 600", gpus=1, hold=True, name="again", grace_s=0.1)
            verb("release", again, "--home", home)
            assert eventually(lambda: kant.phase(again) == "running")
            verb("requeue", again, "--home", home)
            assert eventually(lambda: kant.job(again)["job"]["attempt"] == 2)
            assert eventually(lambda: "run 1" in collector.of(again))
            kant.kill()
        with Up(home, traces=url) as kant:
            verb("cancel", again, "--home", home)
            assert kant.over(again) == ["cancelled"]
            assert eventually(lambda: "job fails" in collector.of(fails))
            said = kant.log(fails).strip()
            last = kant.submit("true", name="last")
            assert kant.over(last) == ["finished"]
        assert "job last" in collector.of(last), "what is left is sent when Kant ends"
    spans = collector.of(fails)
    assert spans.keys() >= {"job fails", "waiting", "run 1"}
    job, run = spans["job fails"], spans["run 1"]
    assert said == f"00-{'ab' * 16}-{run['spanId']}-01"
    assert {span["traceId"] for span in spans.values()} == {"ab" * 16}
    assert job["parentSpanId"] == "cd" * 8
    assert {span["parentSpanId"] for name, span in spans.items() if name != "job fails"} == {job["spanId"]}
    assert job["status"]["code"] == run["status"]["code"] == 2 and spans["waiting"]["status"] == {}
    assert run["is"]["process.exit.code"] == "3" and "process.exit.code" not in spans["waiting"]["is"]
    times = [int(job["startTimeUnixNano"]), int(run["startTimeUnixNano"]), int(run["endTimeUnixNano"])]
    assert times == sorted(times) and int(job["endTimeUnixNano"]) == times[-1] and times[2] - times[1] >= 3e8
    assert int(spans["waiting"]["endTimeUnixNano"]) == times[1]
    others = collector.of(again)
    assert others.keys() - {"waiting"} == {"held", "run 1", "run 2", "job again"}, "who starts at once does not wait"
    assert len({span["spanId"] for span in others.values()}) == len(others)
    assert len({span["traceId"] for span in others.values()}) == 1 and others["job again"]["parentSpanId"] == ""
    assert others["run 2"]["parentSpanId"] == others["job again"]["spanId"] == others["run 1"]["parentSpanId"]
    assert set(collector.asked) == {("/v1/traces", "a b")}


STAGES = st.lists(st.sampled_from(["held", "blocked", "waiting", "running", "stopping"]), max_size=8)


@given(STAGES, st.booleans())
@example(["running"], True)
def test_the_spans_of_a_job_follow_each_other(stages: list[str], restarts: bool) -> None:
    """Whatever happens to it they fill its life without a gap, and each is another one."""
    now = 100
    traces = Traces("http://c", b"key", lambda: now)
    submission = Submission(command=("true",), workdir="/")
    record = JobRecord(7, "7", submission, b"", "ann", now, JobPhase.WAITING)
    traces.changed(record)
    for stage in stages:
        now += 10
        if stage == "running" and record.phase not in (JobPhase.RUNNING, JobPhase.STOPPING):
            record.attempt, record.started = record.attempt + 1, now - 3
        if stage == "stopping" and record.phase is not JobPhase.RUNNING:
            continue
        record.phase = JobPhase(stage)
        traces.changed(record)
        traces.changed(record)
    now += 10
    if restarts and record.phase is JobPhase.RUNNING:
        sent = traces.waiting
        traces = Traces("http://c", b"key", lambda: now)
        traces.know(record)
        traces.waiting = sent
    record.phase, record.ended, record.code = JobPhase.FAILED, now, 1
    traces.changed(record)
    *parts, whole = traces.waiting
    ends = [(int(part["startTimeUnixNano"]) // 1000, int(part["endTimeUnixNano"]) // 1000) for part in parts]
    assert [start for start, _ in ends] == [100, *(end for _, end in ends[:-1])] and ends[-1][1] == now
    assert (whole["startTimeUnixNano"], whole["endTimeUnixNano"]) == ("100000", f"{now}000")
    assert len({part["spanId"] for part in traces.waiting}) == len(traces.waiting)
    assert not traces.stages, "a job that is over is forgotten"
    assert [part["name"] for part in parts if part["name"][:3] == "run"] == [
        f"run {n + 1}" for n in range(record.attempt)
    ]


@pytest.mark.parametrize("came, left", [(0, 500), (9_700, 300), (10_000, 0)])
def test_what_is_sent_again_is_lost_before_what_came_later(came: int, left: int) -> None:
    traces = Traces("http://c", b"key", lambda: 0)
    spans: list[dict[str, Any]] = [{"name": str(number)} for number in range(500 + came)]
    traces.waiting.extend(spans[500:])
    traces._put_back(spans[:500])
    assert list(traces.waiting) == spans[500 - left :]


def test_without_a_collector_no_run_has_a_trace(tmp_path: Path) -> None:
    with Up(tmp_path / "home") as kant:
        job = kant.submit("echo has $TRACEPARENT")
        assert kant.over(job) == ["finished"] and kant.log(job).strip() == "has"


def test_the_address_of_a_collector() -> None:
    assert (
        traces_url("http://c:4318/", "--otlp")
        == "http://c:4318/v1/traces"
        == traces_url("http://c:4318/v1/traces", "x")
    )
    for wrong in ("collector:4318", "ftp://c", "http://", "http://c:99999", "http://[c"):
        assert "--otlp: expected the address of a collector" in verb("up", "--otlp", wrong).refusal()
    assert headers() == {}
