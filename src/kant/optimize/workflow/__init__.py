"""Workflows: which stage of a graph runs when and on which processor. Processors differ, and data must be transferred.

A plan is for one graph, or for a stream of graphs that arrive over time (DeepSoCS, arXiv 2005.07666). Policies are in
`policies`; `board.py` has the state that they see, and `plan.py` carries out their choices.
"""
