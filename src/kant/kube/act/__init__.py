"""Execution of plans of the core: bindings and evictions."""
