"""For new interpreters that tests start: modules make few cycles, and by default a sixth of a start is collections."""

import gc

gc.set_threshold(20_000)
