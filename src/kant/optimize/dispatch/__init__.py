"""Dispatch: many schedulers give short tasks to machines at once, each by what it last heard of their loads.

Dodoor (arXiv 2510.12889), the schedulers that it is compared with, and a variant of ours, with each message counted.
"""
