"""Workflows: which stage of a graph runs when, on which of several unlike processors, with data on the way.

One graph that is planned whole, or a stream of graphs that arrive over time (DeepSoCS, arXiv 2005.07666). Policies are
in `policies`; `board.py` is what they look at, and `plan.py` carries out what they choose.
"""
