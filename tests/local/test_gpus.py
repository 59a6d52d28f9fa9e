"""The GPUs of this machine: as NVML and nvidia-smi list them, whole and divided, and those that are not well."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant as verb
from tests.local.up import PROFILE, Up, eventually

from kant.local import gpu_health, machine, nvml
from kant.local.gpu_use import GpuUse
from kant.local.machine import Device, devices, found_here, gpu_watts, listed, this_machine, visible
from kant.local.machine import checked as checked_gpus
from kant.local.nvml import MigDevice, NvmlGpu, Use, ailments, list_gpus, uses
from kant.local.power import PowerCaps
from kant.local.record import JobPhase, JobRecord
from kant.model.errors import InputError
from kant.model.submission import Submission, Terminal
from kant.model.units import SECOND
from kant.service.daemon import DaemonOptions, serve
from kant.workload.cluster_file import read_cluster

H100 = "NVIDIA H100 80GB HBM3"


def test_gpus_are_listed_as_nvidia_smi_says() -> None:
    text = f"0, {H100}, GPU-a, Disabled\n1, {H100}, GPU-b, [N/A]\n"
    assert checked_gpus(listed(text)) == [Device(H100, "GPU-a", 0), Device(H100, "GPU-b", 1)]
    assert listed("") == []
    for wrong in (
        "No devices were found",
        "1, A, U, Disabled",
        "0, A, U, Disabled\n0, A, U, Disabled",
        "0, A, Disabled",
    ):
        with pytest.raises(InputError):
            listed(wrong)
    with pytest.raises(InputError, match=r"GPU 0: expected MIG devices \(nvidia-smi mig -cgi\) that NVML lists"):
        checked_gpus(listed("0, A, U, Enabled"))


@dataclass
class State:
    """What a GPU says of itself."""

    lost: bool = False
    errors: int = 0
    rows: int = 0
    heat: int = 40
    busy: tuple[int, ...] = ()
    used: int = 0
    watts: int = 700


class FakeNvml:
    """The functions of NVML that Kant calls, over GPUs of our own; `wrong` has the code that a function gives.

    `states` gives how the GPUs are now; they slow down at 90 °C.
    """

    def __init__(self, gpus: list[NvmlGpu], states: Callable[[], list[State]] = list, **wrong: int) -> None:
        self.gpus = gpus
        self.states = states
        self.wrong = wrong
        self.open = 0

    def _state(self, device: Any) -> State:
        return self.states()[device.value // 1000 - 1]

    def _devicegettotaleccerrors(self, device: Any, kind: Any, since: Any, out: Any) -> int:
        assert (kind.value, since.value) == (1, 0)
        out._obj.value = self._state(device).errors
        return 15 if self._state(device).lost else 0

    def _devicegetremappedrows(self, device: Any, *out: Any) -> None:
        out[3]._obj.value = self._state(device).rows

    def _devicegetmemoryinfo_v2(self, device: Any, out: Any) -> None:
        assert out._obj.version == 40 | 2 << 24, "the size of the structure and its version, as nvml.h has it"
        total = 40 << 30 if device.value % 1000 else 80 << 30
        used = self._state(device).used << 20 if self.states() else 0
        out._obj.total, out._obj.used, out._obj.reserved = total, used, 1 << 30

    def _devicegetsamples(self, device: Any, kind: Any, since: Any, value: Any, many: Any, out: Any) -> int:
        """The latest samples after a time; each was taken at its own, from 1 on."""
        assert (kind.value, value._obj.value) == (1, 0)
        fresh = [(time, busy) for time, busy in enumerate(self._state(device).busy, 1) if time > since.value]
        for place, (time, busy) in enumerate(fresh[-many._obj.value :]):
            out[place].time, out[place].value = time, busy
        many._obj.value = len(fresh)
        return 0 if fresh else 6

    def _devicegetenforcedpowerlimit(self, device: Any, out: Any) -> None:
        out._obj.value = 1000 * self._state(device).watts

    def _devicegettemperature(self, device: Any, sensor: Any, out: Any) -> None:
        out._obj.value = self._state(device).heat

    def _devicegettemperaturethreshold(self, device: Any, which: Any, out: Any) -> None:
        assert which.value == 1
        out._obj.value = 90

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: (
            self.wrong.get(name) or getattr(self, "_" + name.removeprefix("nvml").lower())(*arguments) or 0
        )

    def _init_v2(self) -> None:
        self.open += 1

    def _shutdown(self) -> None:
        self.open -= 1

    def _devicegetcount_v2(self, out: Any) -> None:
        out._obj.value = len(self.gpus)

    def _devicegethandlebyindex_v2(self, index: Any, out: Any) -> None:
        out._obj.value = 1000 * (index.value + 1)

    def _devicegetname(self, device: Any, buffer: Any, width: Any) -> None:
        gpu, part = self.gpus[device.value // 1000 - 1], device.value % 1000
        buffer.value = (gpu.slices[part - 1].model if part else gpu.model).encode()[: width.value]

    def _devicegetuuid(self, device: Any, buffer: Any, width: Any) -> None:
        gpu, part = self.gpus[device.value // 1000 - 1], device.value % 1000
        buffer.value = (gpu.slices[part - 1].uuid if part else gpu.uuid).encode()

    def _devicegetmigmode(self, device: Any, now: Any, later: Any) -> None:
        now._obj.value = self.gpus[device.value // 1000 - 1].mig

    def _devicegetmaxmigdevicecount(self, device: Any, out: Any) -> None:
        out._obj.value = 7

    def _devicegetmigdevicehandlebyindex(self, device: Any, number: Any, out: Any) -> int:
        if number.value >= len(self.gpus[device.value // 1000 - 1].slices):
            return 6
        out._obj.value = device.value + number.value + 1
        return 0

    def _errorstring(self, code: int) -> bytes:
        return b"GPU is lost" if code == 15 else b"?"


AILS = "GPU 0 accepts no new jobs: uncorrected ECC errors: 1"


def _of_40_gib(slices: tuple[MigDevice, ...]) -> tuple[MigDevice, ...]:
    return tuple(each._replace(memory=40 << 10) for each in slices)


SLICES = (MigDevice(f"{H100} MIG 3g.40gb", "MIG-1"), MigDevice(f"{H100} MIG 3g.40gb", "MIG-2"))


def test_gpus_are_listed_as_nvml_says() -> None:
    gpus = [NvmlGpu(H100, "GPU-a"), NvmlGpu(H100, "GPU-b", True, SLICES)]
    fake = FakeNvml(gpus)
    whole, parted = replace(gpus[0], memory=80 << 10), replace(gpus[1], memory=80 << 10, slices=_of_40_gib(SLICES))
    assert list_gpus(fake) == [whole, parted] and fake.open == 0
    assert list_gpus(FakeNvml(gpus, nvmlDeviceGetMemoryInfo_v2=3)) == gpus, "they do not say it"
    with pytest.raises(InputError, match=r"this machine: expected GPUs of one model .*, got .* MIG 3g\.40gb"):
        checked_gpus(gpus)
    assert list_gpus(FakeNvml(gpus, nvmlInit_v2=9)) is None  # no driver
    assert list_gpus(FakeNvml(gpus, nvmlDeviceGetMigMode=3)) == [whole, replace(whole, uuid="GPU-b")]
    lost = FakeNvml(gpus, nvmlDeviceGetName=15)
    with pytest.raises(InputError, match=r"GPU 0: expected an answer from NVML \(GPU is lost\)"):
        list_gpus(lost)
    assert lost.open == 0
    assert list_gpus(FakeNvml([])) == []


def test_devices_into_which_gpus_are_divided_are_gpus_of_their_own() -> None:
    found = checked_gpus([NvmlGpu(H100, "GPU-a", True, SLICES), NvmlGpu(H100, "GPU-b", True, SLICES[:1])])
    assert [device.gpu for device in found] == [0, 0, 1]
    node = this_machine(found).nodes[0]
    assert (node.gpus, node.model) == (3, f"{H100} MIG 3g.40gb")
    said = found_here(this_machine(found))
    assert re.match(r"this machine has 3 GPUs \(.*MIG 3g\.40gb\), \d+ cores and \d+ GiB of memory$", said)
    halves = found_here(this_machine(found), checked_gpus([NvmlGpu(H100, "GPU-a", True, _of_40_gib(SLICES))]))
    assert "MIG 3g.40gb, 40 GiB), " in halves, "with its memory where it is known"
    assert "1 GPU (" in found_here(this_machine(found[:1])) and "has no GPU" in found_here(this_machine([]))
    assert visible(found) == ("MIG-1", "MIG-2", "MIG-1")
    assert visible(checked_gpus([NvmlGpu(H100, "GPU-a")])) == ()


def test_where_nvml_cannot_begin_nvidia_smi_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [NvmlGpu(H100, "GPU-a")]
    monkeypatch.setattr(machine, "by_program", lambda: [NvmlGpu("other")])
    monkeypatch.setattr(machine, "load", lambda: FakeNvml(gpus))
    assert devices()[0].model == H100
    for library in (None, FakeNvml(gpus, nvmlInit_v2=18)):
        monkeypatch.setattr(machine, "load", lambda library=library: library)
        assert devices()[0].model == "other"


# --- their health ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "before", "why"),
    [
        (State(), "", ""),
        (State(lost=True), "", "it does not answer (GPU is lost)"),
        (State(errors=2), "", "uncorrected ECC errors: 2"),
        (State(rows=1), "", "a faulty row of its memory could not be remapped"),
        (State(heat=89), "", ""),
        (State(heat=90), "", "it is too hot (it slows down at 90 °C)"),
        (State(heat=86), "it is too hot (it slows down at 90 °C)", "it is too hot (it slows down at 90 °C)"),
        (State(heat=85), "it is too hot (it slows down at 90 °C)", ""),
    ],
)
def test_what_ails_a_gpu(state: State, before: str, why: str) -> None:
    fake = FakeNvml([NvmlGpu(H100)], lambda: [state])
    assert ailments(fake, 1, {0: before} if before else {}) == ({0: why} if why else {})


@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetTemperature",
     "nvmlDeviceGetTemperatureThreshold"],
)  # fmt: skip
def test_what_a_gpu_cannot_say_is_no_ailment(function: str) -> None:
    assert ailments(FakeNvml([NvmlGpu(H100)], lambda: [State()], **{function: 3}), 1, {}) == {}


def test_a_gpu_that_cannot_be_reached_ails() -> None:
    assert ailments(FakeNvml([NvmlGpu(H100)], nvmlDeviceGetHandleByIndex_v2=15), 1, {}) == {
        0: "it does not answer (GPU is lost)"
    }


# --- what they do ----------------------------------------------------------------------------------------------------


def test_what_gpus_did_since_the_look_before() -> None:
    state = State(busy=(100, 50, 0), used=3000)
    fake = FakeNvml([NvmlGpu(H100), NvmlGpu(H100)], lambda: [state, State()])
    first = uses(fake, 2, {})
    assert first == {0: Use(0.5, 3000, 80 << 10, 3), 1: Use(0.0, 0, 80 << 10, 0)}
    assert uses(fake, 1, first) == {0: Use(0.0, 3000, 80 << 10, 3)}, "no sample since"
    state.busy += (80, 40)
    assert uses(fake, 1, first) == {0: Use(0.6, 3000, 80 << 10, 5)}
    for function in ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetSamples"):
        assert uses(FakeNvml([NvmlGpu(H100)], lambda: [state], **{function: 3}), 1, {}) == {}


def test_what_a_gpu_draws_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [NvmlGpu(H100, "GPU-a"), NvmlGpu(H100, "GPU-b", True, SLICES)]

    def there(*states: State, **wrong: int) -> None:
        fake = FakeNvml(gpus[: len(states)], lambda: list(states), **wrong)
        monkeypatch.setattr(machine, "load", lambda: fake if states else None)

    whole, parts = [Device(H100, "GPU-a", 0)], [Device("part", each.uuid, 0) for each in SLICES]
    there(State(watts=650))
    assert (gpu_watts(whole), gpu_watts(parts)) == (650, 325)
    there(State(), State(watts=500))
    assert gpu_watts([*whole, Device(H100, "GPU-b", 1)]) == 700
    for states, wrong in (((), {}), ((State(watts=0),), {}), ((State(),), {"nvmlDeviceGetEnforcedPowerLimit": 3})):
        there(*states, **wrong)
        with pytest.raises(InputError, match="--gpu-watts: expected the power of one GPU"):
            gpu_watts(whole)


def record(mask: int, attempt: int = 1, pty: bool | None = True) -> JobRecord:
    terminal = Terminal(pty=pty) if pty is not None else None
    asked, place = Submission(command=("x",), workdir="/", terminal=terminal), [[0, 1, mask, 1000, 0, 0, 0, 0, 0]]
    return JobRecord(7, "7", asked, b"", "me", 0, JobPhase.RUNNING, attempt=attempt, place=place)


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0.0, 0.0, 0.5])), max_size=20), st.integers(5, 20))
def test_who_idles_for_as_long_as_the_limit_is_stopped(looks: list[tuple[int, float]], limit: int) -> None:
    use, own, now, idle_since = GpuUse([Device(H100, "GPU-a", 0)], limit), record(1), 0, None
    for gap, busy in looks:
        now += gap
        if busy or idle_since is None:
            idle_since = now
        late = use.look({0: Use(busy, 1, 2)}, [own], now * SECOND)
        assert bool(late) == (now - idle_since >= limit)
        assert bool(use.warning(own, now * SECOND)) == (2 * (now - idle_since) >= limit)
    if looks:
        found = use.jobs["7"]
        assert found.busy_sum / found.looks == pytest.approx(sum(busy for _, busy in looks) / len(looks))


def test_only_interactive_jobs_with_gpus_of_their_own_idle() -> None:
    places = [Device(H100, f"GPU-{gpu}", gpu) for gpu in range(3)]
    gpus = {0: Use(0.0, 10, 100), 1: Use(0.5, 20, 100)}
    use = GpuUse(places, 5)
    held = record(1)
    held.phase = JobPhase.STOPPING
    for own, seen, idles in (
        (record(1), True, True), (record(3), True, False), (record(1, pty=False), True, False), (held, False, False),
        (record(1, pty=None), True, False), (record(0), False, False), (record(5), False, False),
    ):  # fmt: skip
        use.jobs.clear()
        use.look(gpus, [own], 0)
        assert use.look(gpus, [own], 5 * SECOND) == [own] * idles
        assert ("7" in use.jobs) == seen
    both = record(3)
    use.look(gpus, [both], 0)
    found = use.jobs["7"]
    assert (found.busy, found.memory_mib, found.total_mib) == (0.25, 30, 200)
    use.look({0: Use(0.0, 5, 100), 1: Use(0.0, 5, 100)}, [both], SECOND)
    assert (use.jobs["7"].memory_mib, use.jobs["7"].peak_mib) == (10, 30)
    assert use.look(gpus | {1: Use(0.0, 1, 1)}, [record(3, attempt=2)], 9 * SECOND) == [], "another run begins anew"
    assert GpuUse(places).look(gpus, [record(1)], 99 * SECOND) == [], "without a limit nobody is stopped"


def test_idle_gpus_are_warned_about_then_taken(tmp_path: Path) -> None:
    home = tmp_path / "home"
    busy = home / "busy"

    def prepare() -> None:
        def states() -> list[State]:
            return [State(busy=tuple(range(int(busy.read_text()))) if busy.exists() else (), used=4096)] * 2

        machine.load = nvml.load = lambda: FakeNvml([NvmlGpu(H100, "GPU-a"), NvmlGpu(H100, "GPU-b")], states)  # type: ignore[attr-defined]
        gpu_health.GpuHealth.__init__.__defaults__ = (0.05,)

    with Up(home, cluster=None, prepare=prepare, idle_s=4.0, power=PowerCaps(1000)) as up:
        here = up.client.get("/v1/health")["here"]
        assert f"2 GPUs ({H100}, 80 GiB), " in here
        assert here.endswith("; its power cap allows 1 of its GPUs in use, each at up to 700 W")
        batch = up.submit("sleep 60", gpus=0.5)
        own = up.submit("echo begun; sleep 60", gpus=0.5, terminal={"pty": True})
        line, said = up.client.line(up.client.job(own, "attach"), offset=0, rows=24, columns=80), []
        assert eventually(
            lambda: said.extend(line.messages()) or b"unless it uses them" in b"".join(map(b"".join, said))
        )
        line.close()
        busy.write_text("40")
        assert eventually(lambda: up.job(own)["gpu_use"]["busy_mean"] > 0)
        assert up.job(own)["gpu_use"]["warning"] == ""
        shown = verb("show", own, "--home", home).out
        assert "memory     4.0 of 80.0 GiB, 4.0 at most" in shown and "% since it began" in shown
        top = verb("top", "--home", home)
        assert "4096" in top.out and verb("top", "--home", home, "--json").json()["gpus"][0]["jobs"] == [batch, own]
        assert up.over(own) == ["cancelled"]
        assert up.job(own)["job"]["reason"] == "its GPUs were idle for 4s"
        assert up.phase(batch) == "running" and up.job(batch)["gpu_use"]["warning"] == ""
        up.client.post(up.client.job(batch, "cancel"))
        assert up.over(batch) == ["cancelled"] and up.job(batch)["job"]["reason"] == ""
    with pytest.raises(InputError, match="--idle-gpus: expected GPUs that NVML can query on this machine"):
        serve(DaemonOptions(home=tmp_path, profile=PROFILE, cluster=read_cluster("1x1"), idle_s=2.0))
    assert not (tmp_path / "journal").exists()


@pytest.fixture
def kant(tmp_path: Path) -> Iterator[Up]:
    """A machine of two GPUs, each in two MIG devices; `ecc` in its home has the index of one with errors."""
    home = tmp_path / "home"

    def states() -> list[State]:
        text = (home / "ecc").read_text() if (home / "ecc").exists() else ""
        return [State(errors=int(text == str(gpu))) for gpu in range(2)]

    def prepare() -> None:
        fake = FakeNvml([NvmlGpu(H100, f"GPU-{gpu}", True, _parts(gpu)) for gpu in range(2)], states)
        machine.load = nvml.load = lambda: fake  # type: ignore[attr-defined]
        gpu_health.GpuHealth.__init__.__defaults__ = (0.05,)

    with Up(home, cluster=None, prepare=prepare) as up:
        yield up


def _parts(gpu: int) -> tuple[MigDevice, ...]:
    return tuple(MigDevice(f"{H100} MIG 3g.40gb", f"MIG-{gpu}{part}") for part in range(2))


def test_a_gpu_that_ails_takes_nothing_new_until_it_is_well(kant: Up) -> None:
    script = "echo $CUDA_VISIBLE_DEVICES; while [ ! -e go ]; do sleep 0.01; done"
    first = kant.submit(script, gpus=1)
    assert eventually(lambda: kant.log(first) == "MIG-00\n")
    (kant.home / "ecc").write_text("0")
    assert eventually(lambda: AILS in kant.client.get("/v1/health")["complaint"])
    assert AILS in verb("top", "--home", kant.home).out
    rest = [kant.submit(script, gpus=1, preemptible=False) for _ in range(3)]
    assert eventually(lambda: [kant.phase(job) for job in rest] == ["running", "running", "waiting"])
    assert kant.phase(first) == "running", "nobody is stopped for it"
    (kant.home / "go").touch()
    assert kant.over(first, *rest) == ["finished"] * 4
    assert sorted(kant.log(job) for job in rest[:2]) == ["MIG-10\n", "MIG-11\n"]
    assert kant.log(rest[2])[:5] == "MIG-1"
    whole = kant.submit("true", gpus=4)
    assert eventually(lambda: kant.phase(whole) == "waiting")
    (kant.home / "ecc").write_text("")
    assert kant.over(whole) == ["finished"]
    assert kant.client.get("/v1/health")["complaint"] == ""
    assert kant.client.get("/v1/health")["here"].startswith("this machine has 4 GPUs (")
