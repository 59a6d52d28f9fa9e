"""The rules by which workflows are planned. Each is a small frozen class in its own file."""

from kant.optimize.workflow.policies.cpop import Cpop
from kant.optimize.workflow.policies.eft import Eft
from kant.optimize.workflow.policies.etf import Etf
from kant.optimize.workflow.policies.heft import Heft
from kant.optimize.workflow.policies.heft_rt import HeftRt
from kant.optimize.workflow.policies.learned import LearnedRule
from kant.optimize.workflow.policies.met import Met
from kant.optimize.workflow.policies.rank import Rank
from kant.optimize.workflow.policy import WorkflowRule

POLICIES: dict[str, WorkflowRule] = {
    "heft": Heft(),
    "cpop": Cpop(),
    "learned": LearnedRule(),
    "etf": Etf(),
    "rank": Rank(),
    "eft": Eft(),
    "met": Met(),
    "heft-rt": HeftRt(),
}
"""The rules by name, in the order in which comparisons list them."""

__all__ = ["POLICIES"]
