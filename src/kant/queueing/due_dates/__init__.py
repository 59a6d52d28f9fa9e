"""Rules that sequence jobs with due dates on one machine for a small total tardiness (1 || ΣT).

Every rule takes processing times `p`, due dates `d` (integer arrays of one length and unit) and the time `start` at
which the machine is free. It returns the indices of the jobs in the order in which to run them. Ties go to the earlier
due date, then the shorter job, then the smaller index.
"""

from kant.queueing.due_dates.challengers import augmented_mddc, eddc, mddc
from kant.queueing.due_dates.descent import best_of_the_rules, descend, mdd_vnd
from kant.queueing.due_dates.positions import positions
from kant.queueing.due_dates.rules import edd, mdd_sequence, total_tardiness

__all__ = [
    "augmented_mddc",
    "best_of_the_rules",
    "descend",
    "edd",
    "eddc",
    "mdd_sequence",
    "mdd_vnd",
    "mddc",
    "positions",
    "total_tardiness",
]
