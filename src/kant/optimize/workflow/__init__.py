"""Workflows: which stage of a graph runs when, on which of several different processors, with data transfers.

A plan covers one graph, or a stream of graphs that arrive over time (DeepSoCS, arXiv 2005.07666). Policies are in
`policies`; `board.py` is their view of the state, and `plan.py` carries out their choices.
"""
