"""Capacity planning: how many GPUs, nodes or licences to reserve so that all pipelines meet their deadlines.

This is the resource investment problem: choose when each task starts; the cost is the weighted sum of the peaks.
"""
