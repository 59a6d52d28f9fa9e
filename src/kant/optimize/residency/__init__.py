"""Residency: which models and buffers lie in the fast memory of a GPU when, and which are read from where they live.

The game of mallocGame (arXiv 2305.07440): at each use a buffer is kept, copied ahead of time, or left where it is.
"""
