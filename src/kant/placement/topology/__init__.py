"""Placement by the topology of the cluster: one domain of the fabric for a gang, then nodes inside it."""
