"""Plans of the core carried out: bindings and evictions."""
