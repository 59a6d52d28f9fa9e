"""Placement that spreads: pods of one service keep apart, in the cluster or in the inference zone."""
