"""The cost of a placement: the job's slowdown, and the room lost to typical pods."""
