"""Experiments: many runs, each once; their combined results; and whether a change of policy does harm."""
