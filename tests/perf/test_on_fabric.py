"""What operations cost where a job lies: by hand, and who lies farther apart is not faster."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.model.fabric import Fabric
from kant.model.training import Training
from kant.placement.cost.communication import FULL, Spans
from kant.placement.perf.layer import Cost
from kant.placement.perf.on_fabric import Measured, layout, operations, stack_of
from kant.placement.perf.step import step, step_slowdown

FABRIC = Fabric()
MIXTRAL = Training(32, 4096, 14_336, heads=32, kv_heads=8, experts=8, top_k=2, tensor=8, expert=8)


def even(gpus: int, nodes: int, leaves: int = 1, spines: int = 1, superspines: int = 1) -> Spans:
    most = tuple(-(-gpus // domains) for domains in (nodes, nodes, leaves, spines, superspines))
    return Spans(gpus, nodes, nodes, most)  # type: ignore[arg-type]


def test_gpus_that_share_a_layer_gather_over_nvlink_and_experts_go_through_the_leaf() -> None:
    costs = operations(MIXTRAL, FABRIC, even(64, 8))
    assert costs.all_gather == pytest.approx((7 * 3.4e-6, 7 / 8 / 450e9))
    assert costs.reduce_scatter == costs.all_gather
    assert costs.all_to_all == pytest.approx((9.6e-6, 7 / 8 / 50e9))  # seven eighths leave the node
    assert costs.all_reduce == pytest.approx((2 * 7 * 9.6e-6, 2 * 7 / 8 / 50e9))  # eight replicas, one in a node
    assert costs.contention == pytest.approx(0.68)


def test_layers_that_leave_the_node_share_its_ports_with_the_experts() -> None:
    groups = layout(MIXTRAL, even(64, 16))
    assert groups.at["all_gather"] == "leaf"
    assert operations(MIXTRAL, FABRIC, even(64, 16)).contention == 0.5


def test_what_was_measured_goes_before_what_the_fabric_says() -> None:
    measured = Measured({("all_to_all", "leaf"): Cost(1.0, 2.0), ("all_to_all", "spine"): Cost(3.0, 4.0)}, 0.9)
    costs = operations(MIXTRAL, FABRIC, even(64, 8), measured)
    assert costs.all_to_all == (1.0, 2.0)
    assert costs.contention == 0.9
    assert costs.all_reduce == operations(MIXTRAL, FABRIC, even(64, 8)).all_reduce


def test_what_a_layer_of_mixtral_sends_and_computes() -> None:
    layer = stack_of(MIXTRAL, FABRIC, even(64, 8)).layers[0]
    tokens, width = 4096, 4096
    assert layer.exchanged == 2 * tokens * width * 2 / 8
    assert layer.gathered == 2 * tokens * width * 2
    assert layer.expert_macs == 2 * tokens * 3 * width * 14_336 / 8
    assert layer.gradient == 2.5 * width * width * 2 / 8  # experts have no replicas: no gradients of theirs are summed


def test_gradients_of_replicated_experts_are_summed_too() -> None:
    spans = even(128, 16)
    wide = stack_of(MIXTRAL, FABRIC, spans).layers[0].gradient
    assert wide > 2.5 * 4096 * 4096 * 2 / 8


def test_one_gpu_computes_and_sends_nothing() -> None:
    alone = msgspec.structs.replace(MIXTRAL, tensor=1, expert=1)
    found = step(alone, FABRIC, even(1, 1))
    busy = found.busy()
    assert found.seconds == pytest.approx(busy["compute"])
    assert sum(busy.values()) == busy["compute"]


def test_stages_wait_for_each_other_less_the_more_micro_batches_there_are() -> None:
    few, many = (
        step(msgspec.structs.replace(MIXTRAL, pipeline=4, micro_batches=count), FABRIC, even(256, 32))
        for count in (1, 16)
    )
    assert few.bubble == many.bubble
    assert many.bubble / many.seconds < few.bubble / few.seconds
    assert len(few.plan.layers) == 8


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    experts = draw(st.sampled_from((1, 8, 16)))
    return Training(
        layers=draw(st.integers(4, 12)),
        width=draw(st.sampled_from((1024, 4096))),
        hidden=draw(st.sampled_from((2048, 14_336))),
        length=draw(st.sampled_from((512, 4096))),
        experts=experts,
        top_k=min(experts, 2),
        moe_every=draw(st.integers(1, 2)),
        tensor=draw(st.sampled_from((1, 2, 8))),
        expert=draw(st.sampled_from((1, experts))),
        pipeline=draw(st.sampled_from((1, 2))),
        micro_batches=draw(st.sampled_from((1, 4))),
    )


WIDER = [even(64, 8), even(64, 8, 2), even(64, 8, 4), even(64, 8, 4, 2), even(64, 8, 4, 2, 2)]


@given(trainings())
@settings(max_examples=examples(15), deadline=None)
def test_who_spans_more_of_the_fabric_is_not_faster(training: Training) -> None:
    seconds = [step(training, FABRIC, spans).seconds for spans in WIDER]
    for near, far in pairwise(seconds):
        assert far >= near * (1 - 1e-3)
    assert step_slowdown(training, FABRIC, WIDER[0], WIDER[0]) == FULL


@given(trainings(), st.sampled_from(WIDER))
@settings(max_examples=examples(10), deadline=None)
def test_a_step_is_at_least_its_arithmetic(training: Training, spans: Spans) -> None:
    found = step(training, FABRIC, spans)
    assert found.seconds >= found.busy()["compute"] * training.micro_batches * (1 - 1e-9)
