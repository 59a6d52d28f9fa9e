"""Dispatch: many schedulers assign short tasks to machines at the same time, by what each last heard of their loads.

Dodoor (arXiv 2510.12889), the schedulers that it is compared with, and a variant of ours, with every message counted.
"""
