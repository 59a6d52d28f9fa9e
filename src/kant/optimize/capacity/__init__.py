"""Capacity planning: how many GPUs, nodes or licences must be reserved so that all pipelines meet their deadlines.

The resource investment problem: choose when each task starts; the cost is the peak of each resource.
"""
