"""RSCH, the resource scheduler: chooses the nodes and devices of each job."""
