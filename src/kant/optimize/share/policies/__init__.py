"""The policies that share GPUs in rounds. Each is a small frozen class in its own file."""

from kant.optimize.share.policies.allox import AlloX
from kant.optimize.share.policies.gandiva_fair import GandivaFair
from kant.optimize.share.policies.max_min import MaxMin
from kant.optimize.share.policies.min_total_duration import MinTotalDuration
from kant.optimize.share.policies.mst import Mst
from kant.optimize.share.policies.shockwave import ShockwaveRounds
from kant.optimize.share.policies.themis import Themis
from kant.optimize.share.policy import RoundPolicy

POLICIES: dict[str, RoundPolicy] = {
    "shockwave": ShockwaveRounds(),
    "shockwave-greedy": ShockwaveRounds(solver=False),
    "max-min": MaxMin(),
    "gandiva-fair": GandivaFair(),
    "themis": Themis(),
    "min-total-duration": MinTotalDuration(),
    "mst": Mst(),
    "allox": AlloX(),
}
"""The policies by name, in the order in which comparisons list them."""

ALSO = {"ossp": "min-total-duration", "gavel": "max-min", "finish-time-fairness": "themis"}
"""Other names of the policies."""

__all__ = ["ALSO", "POLICIES"]
