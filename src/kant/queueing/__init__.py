"""QSCH, the queueing half of Kant: which job is tried next, and whether it may start."""
