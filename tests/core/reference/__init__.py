"""The reference scheduler: the meaning of Kant's disciplines and rules, written as plainly as possible.

It is an oracle for tests. It follows events like any scheduler, but it keeps no index, bucket, cache or kernel: every
cycle starts from the waiting and running jobs, tries every job, and tries every set of victims. It is slow, and meant
for small worlds. It shares no code with `queueing` and `placement`; it reads the same profiles.

If the documents leave a rule open, the reference follows the core: it finds where an index, a cache or a wake-up
departs from the rule, and not whether the rule is a good one.

`Reference` decides; `compare` says where a plan of the real scheduler differs from it. EASY and conservative have an
oracle of their own, `tests/core/textbook.py`.
"""

from tests.core.reference.compare import compare, decisions_of
from tests.core.reference.scheduler import Reference

__all__ = ["Reference", "compare", "decisions_of"]
