"""Quantities are read exactly, and what is none is refused in one sentence."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.kube.objects.quantity import count, exact, mib, milli
from kant.kube.objects.views import Container, Meta, Node, NodeStatus, Pod, PodSpec, Resources
from kant.kube.translate.mig_devices import milli_of
from kant.kube.translate.resources import check_parts, others_of, requests_of, used_of
from kant.kube.translate.shares import GpuShares
from kant.model.errors import InputError
from kant.model.job import Demand
from kant.model.tenant import Queue, QueueConfig, Quota

SUFFIXES = {"": 1, "m": Fraction(1, 1000), "k": 1000, "M": 10**6, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30,
            "e3": 1000, "E-2": Fraction(1, 100), "E": 10**18}  # fmt: skip


@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from(sorted(SUFFIXES)))
def test_a_quantity_is_its_number_times_its_suffix(whole: int, thousandths: int, suffix: str) -> None:
    number = (whole + Fraction(thousandths, 1000)) * SUFFIXES[suffix]
    text = f"{whole}.{thousandths:03}{suffix}"
    assert exact(text, "x") == number
    if number < 1 << 40:
        assert milli(text, "x", up=False) <= number * 1000 <= milli(text, "x") < number * 1000 + 1
        assert mib(text, "x", up=False) <= number / (1 << 20) <= mib(text, "x") < number / (1 << 20) + 1


@given(st.one_of(st.text(max_size=80), st.floats(allow_nan=False, allow_infinity=False), st.integers()))
def test_anything_else_is_refused_in_one_sentence(value: str | int | float) -> None:
    try:
        amount = milli(value, "pod a/b, cpu")
    except InputError as error:
        assert str(error).startswith("pod a/b, cpu: expected ") and "\n" not in str(error)
    else:
        assert 0 <= amount < 1 << 53


@pytest.mark.parametrize("text", ["", "1 Gi", "1gi", "Gi", "1e", "1e9999", "--1", "-1", "0x10", "1_000", "\u0661"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(InputError):
        exact(text, "x")


def test_numbers_of_json_count_as_their_text() -> None:
    assert (milli(1.5, "x"), milli(2, "x"), count("1e3", "x"), mib("12E", "x")) == (1500, 2000, 1000, 11444091796875)


def test_the_request_of_a_pod() -> None:
    def container(cpu: str, gpus: int = 0, **fields: str) -> Container:
        limits = {"nvidia.com/gpu": gpus} if gpus else None
        return Container(Resources({"cpu": cpu, "memory": "1Gi"}, limits), **fields)

    spec = PodSpec(
        containers=(container("2", 4), container("500m", 4)),
        init_containers=(container("1", restart_policy="Always"), container("9"), container("1")),
        overhead={"cpu": "250m"},
    )
    # The second init container needs most: its own 9 cores beside the sidecar's 1.
    assert requests_of(spec).demand == Demand(8, 1000, 10_250, 3072)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=5), st.lists(st.integers(0, 9), max_size=4))
def test_a_pod_asks_for_what_it_needs_at_its_busiest_moment(starting: list[tuple[int, bool]], main: list[int]) -> None:
    spec = PodSpec(
        containers=tuple(Container(Resources({"cpu": cpu})) for cpu in main),
        init_containers=tuple(
            Container(Resources({"cpu": cpu}), restart_policy="Always" if stays else None) for cpu, stays in starting
        ),
    )
    moments, staying = [], 0
    for cpu, stays in starting:
        moments.append(staying + cpu)
        staying += cpu if stays else 0
    assert requests_of(spec).demand.cpu == 1000 * max(*moments, staying + sum(main), 0)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"nvidia.com/gpu": 1, "amd.com/gpu": 1}, "GPUs of one kind"),
        ({"nvidia.com/gpu": "1.5"}, "a whole number"),
        ({"cpu": "lots"}, "pod ml/a, spec.containers[0].resources.limits.cpu: expected a quantity"),
    ],
)
def test_what_kant_cannot_give_is_said(limits: dict[str, str | int | float], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        requests_of(PodSpec(containers=(Container(Resources(None, limits)),)), "pod ml/a, spec")
    assert sentence in str(caught.value)


def test_other_devices_are_asked_for_beside_gpus() -> None:
    limits: dict[str, str | int | float] = {"nvidia.com/gpu": 8, "rdma/hca": 1, "ephemeral-storage": "1Gi"}
    asked = requests_of(PodSpec(containers=(Container(Resources(None, limits)),)))
    assert (asked.demand.gpus, asked.others) == (8, (("ephemeral-storage", 1024), ("rdma/hca", 1)))


def test_no_node_has_to_have_what_hami_gives_out() -> None:
    limits: dict[str, str | int | float] = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000, "nvidia.com/gpucores": 30}
    spec = PodSpec(containers=(Container(Resources(limits, limits)),))
    assert requests_of(spec).others == () and others_of(spec) == {}


@pytest.mark.parametrize(
    ("resource", "queue", "refused"),
    [
        ("nvidia.com/mig-1g.10gb", "team", "whole GPUs in queue team, whose quota does not count parts of GPUs"),
        ("nvidia.com/gpu.shared", "below", "whole GPUs in queue team, whose quota does not count parts of GPUs"),
        ("nvidia.com/mig-1g.10gb", "free", ""),
        ("nvidia.com/mig-1g.10gb", "nobody", ""),
        ("nvidia.com/gpu", "team", ""),
    ],
)
def test_parts_of_gpus_are_had_where_no_quota_of_gpus_is_passed_by(resource: str, queue: str, refused: str) -> None:
    spec = PodSpec(containers=(Container(Resources(None, {resource: 1})),))
    cores = Quota("cpu", nominal=1000)
    queues = QueueConfig((Queue("team", quotas=(Quota(),)), Queue("below", "team"), Queue("free", quotas=(cores,))))
    if not refused:
        check_parts(spec, queue, queues)
        return
    with pytest.raises(InputError, match=refused):
        check_parts(spec, queue, queues)


@pytest.mark.parametrize(
    ("memory", "profiles"),
    [
        (40_960, {"1g.5gb": 125, "1g.10gb": 250, "2g.10gb": 250, "3g.20gb": 500, "4g.20gb": 500, "7g.40gb": 1000}),
        (81_559, {"1g.10gb": 125, "1g.10gb.me": 125, "1g.20gb": 250, "2g.20gb": 250, "3g.40gb": 500, "7g.80gb": 1000}),
        (143_771, {"1g.18gb": 125, "1g.35gb": 250, "2g.35gb": 250, "3g.71gb": 500, "4g.71gb": 500, "7g.141gb": 1000}),
        (24_576, {"1g.6gb": 250, "2g.12gb": 500, "4g.24gb": 1000}),
        (97_887, {"1g.24gb": 250, "2g.48gb": 500, "4g.96gb": 1000}),
        (0, {"1g.10gb": 125, "1g.6gb": 250, "3g.93gb": 500, "7g.186gb": 1000}),
    ],
)
def test_a_mig_device_is_worth_its_memory_slices(memory: int, profiles: dict[str, int]) -> None:
    labels = {"nvidia.com/gpu.memory": str(memory)} if memory else None
    assert {name: milli_of(f"nvidia.com/mig-{name}", labels) for name in profiles} == profiles
    shared = {**(labels or {}), "nvidia.com/mig-1g.10gb.replicas": "3"}
    assert milli_of("nvidia.com/mig-1g.10gb.shared", shared) == milli_of("nvidia.com/mig-1g.10gb", labels) // 3
    assert milli_of("nvidia.com/gpu", labels) == milli_of("rdma/hca", labels) == 0


def test_what_somebody_elses_pod_uses_counts_though_kant_would_refuse_it() -> None:
    limits: dict[str, str | int | float] = {"nvidia.com/mig-1g.10gb": 1, "cpu": "2", "memory": "1Gi"}
    spec = PodSpec(containers=(Container(Resources(None, limits)),))
    assert used_of(spec) == Demand(0, 1000, 2000, 1024)
    assert used_of(PodSpec(containers=(Container(Resources(None, {"cpu": "lots"})),))) == Demand()


def test_a_pod_is_counted_by_the_mig_devices_of_the_nodes_there_are() -> None:
    name, shares = "nvidia.com/mig-2g.20gb", GpuShares()
    node = Node(Meta("n", labels={"nvidia.com/gpu.memory": "81920"}), status=NodeStatus({name: 3}, {name: 3}))
    shares.begin([node])
    found = shares.demand(Pod(Meta("p"), PodSpec(containers=(Container(Resources({name: 2}, {name: 2})),))))
    assert (found.milli, found.mig) == (500, name)
