"""Dispatch: many schedulers assign short tasks to machines at once, each by its latest news of their loads.

Dodoor (arXiv 2510.12889), the schedulers that it is compared with, and a variant of ours, with every message counted.
"""
