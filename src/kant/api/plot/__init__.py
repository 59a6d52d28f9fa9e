"""`kant.plot`: the field's usual pictures of one or several results, one call each.

Every function returns a `Figure`, which a notebook shows and `save` writes as SVG, PDF or PNG. Pictures need
matplotlib, the extra `plot`, which is loaded on first use.
"""

from kant.api.plot.distributions import completions, waits
from kant.api.plot.fairness import fairness
from kant.api.plot.figure import Figure
from kant.api.plot.gantt import gantt
from kant.api.plot.usage import usage

__all__ = ["Figure", "completions", "fairness", "gantt", "usage", "waits"]
