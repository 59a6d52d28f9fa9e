"""What `import kant` offers, for tools that do not run it."""

from kant.api import plot as plot
from kant.api.cluster import Cluster as Cluster
from kant.api.policies import policies as policies
from kant.api.profile import Profile as Profile
from kant.api.result import Result as Result
from kant.api.result import compare as compare
from kant.api.simulate import simulate as simulate
from kant.api.workload import Workload as Workload
from kant.cluster import columns as columns
from kant.compiled import inlined as inlined
from kant.model.errors import InputError as InputError
from kant.model.taxonomy import tagged as tagged
from kant.placement.policy import NodePolicy as NodePolicy
from kant.queueing.discipline import Discipline as Discipline
from kant.queueing.order import Order as Order
from kant.testing.conformance import check_policy as check_policy

__version__: str
__all__: list[str]
