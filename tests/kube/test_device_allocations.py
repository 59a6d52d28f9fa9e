"""Which pods hold the devices that were promised to them, from one state to the next."""

from __future__ import annotations

from kant.kube.follow.mirror import Mirror
from kant.kube.reconcile.device_allocations import DeviceAllocations
from kant.kube.reconcile.slots import Slot
from kant.kube.reconcile.workload import Phase, Workload
from kant.model.job import Demand


def test_in_a_new_state_no_pod_is_on_its_way_by_its_place_in_the_old_one() -> None:
    """Else its devices stayed promised though it waits again, and nobody got them."""
    allocations = DeviceAllocations(Mirror())
    workload = Workload("w", None)
    workload.phase, workload.slots = Phase.PLACED, [Slot("n0", Demand(), "uid")]
    allocations.expect(workload)
    assert allocations.stands("uid")
    allocations.begin()
    assert not allocations.stands("uid")
    allocations.expect(workload)
    assert allocations.stands("uid")
