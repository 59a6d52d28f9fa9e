"""Placement that spreads: pods of one service are kept apart, in the cluster or in the inference zone."""
