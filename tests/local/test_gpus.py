"""The GPUs of this machine: as NVML and nvidia-smi list them, whole and divided, and those that are not well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

from kant.local import gpu_health, machine, nvml
from kant.local.machine import Device, devices, listed, this_machine, visible
from kant.local.machine import checked as checked_gpus
from kant.local.nvml import Gpu, Slice, ailments, list_gpus
from kant.model.errors import InputError

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
    with pytest.raises(InputError, match="GPU 0: expected a GPU with MIG devices that NVML lists"):
        checked_gpus(listed("0, A, U, Enabled"))


@dataclass
class State:
    """What a GPU says of itself."""

    lost: bool = False
    errors: int = 0
    rows: int = 0
    heat: int = 40


class FakeNvml:
    """The functions of NVML that Kant calls, over GPUs of our own; `wrong` has the code that a function gives.

    `states` gives how the GPUs are now; they slow down at 90 °C.
    """

    def __init__(self, gpus: list[Gpu], states: Callable[[], list[State]] = list, **wrong: int) -> None:
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


AILS = "GPU 0 takes nothing new: ECC errors that were not corrected: 1"
SLICES = (Slice(f"{H100} MIG 3g.40gb", "MIG-1"), Slice(f"{H100} MIG 3g.40gb", "MIG-2"))


def test_gpus_are_listed_as_nvml_says() -> None:
    gpus = [Gpu(H100, "GPU-a"), Gpu(H100, "GPU-b", True, SLICES)]
    fake = FakeNvml(gpus)
    assert list_gpus(fake) == gpus and fake.open == 0
    with pytest.raises(InputError, match=r"this machine: expected GPUs of one model .*, got .* MIG 3g\.40gb"):
        checked_gpus(gpus)
    assert list_gpus(FakeNvml(gpus, nvmlInit_v2=9)) is None  # no driver
    assert list_gpus(FakeNvml(gpus, nvmlDeviceGetMigMode=3)) == [Gpu(H100, "GPU-a"), Gpu(H100, "GPU-b")]
    lost = FakeNvml(gpus, nvmlDeviceGetName=15)
    with pytest.raises(InputError, match=r"GPU 0: expected an answer of NVML \(GPU is lost\)"):
        list_gpus(lost)
    assert lost.open == 0
    assert list_gpus(FakeNvml([])) == []


def test_devices_into_which_gpus_are_divided_are_gpus_of_their_own() -> None:
    found = checked_gpus([Gpu(H100, "GPU-a", True, SLICES), Gpu(H100, "GPU-b", True, SLICES[:1])])
    assert [device.gpu for device in found] == [0, 0, 1]
    node = this_machine(found).nodes[0]
    assert (node.gpus, node.model) == (3, f"{H100} MIG 3g.40gb")
    assert visible(found) == ("MIG-1", "MIG-2", "MIG-1")
    assert visible(checked_gpus([Gpu(H100, "GPU-a")])) == ()


def test_where_nvml_cannot_begin_nvidia_smi_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Gpu(H100, "GPU-a")]
    monkeypatch.setattr(machine, "by_program", lambda: [Gpu("other")])
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
        (State(errors=2), "", "ECC errors that were not corrected: 2"),
        (State(rows=1), "", "a row of its memory could not be replaced"),
        (State(heat=89), "", ""),
        (State(heat=90), "", "it is too hot (it slows down at 90 °C)"),
        (State(heat=86), "it is too hot (it slows down at 90 °C)", "it is too hot (it slows down at 90 °C)"),
        (State(heat=85), "it is too hot (it slows down at 90 °C)", ""),
    ],
)
def test_what_ails_a_gpu(state: State, before: str, why: str) -> None:
    fake = FakeNvml([Gpu(H100)], lambda: [state])
    assert ailments(fake, 1, {0: before} if before else {}) == ({0: why} if why else {})


@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetTemperature",
     "nvmlDeviceGetTemperatureThreshold"],
)  # fmt: skip
def test_what_a_gpu_cannot_say_is_no_ailment(function: str) -> None:
    assert ailments(FakeNvml([Gpu(H100)], lambda: [State()], **{function: 3}), 1, {}) == {}


def test_a_gpu_that_cannot_be_reached_ails() -> None:
    assert ailments(FakeNvml([Gpu(H100)], nvmlDeviceGetHandleByIndex_v2=15), 1, {}) == {
        0: "it does not answer (GPU is lost)"
    }


@pytest.fixture
def kant(tmp_path: Path) -> Iterator[Up]:
    """A machine of two GPUs, each in two MIG devices; `ecc` in its home has the index of one with errors."""
    home = tmp_path / "home"

    def states() -> list[State]:
        text = (home / "ecc").read_text() if (home / "ecc").exists() else ""
        return [State(errors=int(text == str(gpu))) for gpu in range(2)]

    def prepare() -> None:
        fake = FakeNvml([Gpu(H100, f"GPU-{gpu}", True, _parts(gpu)) for gpu in range(2)], states)
        machine.load = nvml.load = lambda: fake  # type: ignore[attr-defined]
        gpu_health.GpuHealth.__init__.__defaults__ = (0.05,)

    with Up(home, cluster=None, prepare=prepare) as up:
        yield up


def _parts(gpu: int) -> tuple[Slice, ...]:
    return tuple(Slice(f"{H100} MIG 3g.40gb", f"MIG-{gpu}{part}") for part in range(2))


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
