"""Residency: which models and buffers are in a GPU's fast memory at each time, and which are read from their home tier.

The game of mallocGame (arXiv 2305.07440): at each use a buffer is kept, copied ahead of time, or left at home.
"""
