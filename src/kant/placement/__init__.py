"""RSCH, the resource half: where a job goes."""
