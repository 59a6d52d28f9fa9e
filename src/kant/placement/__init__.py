"""RSCH, the resource half of the scheduler: where a job is placed."""
