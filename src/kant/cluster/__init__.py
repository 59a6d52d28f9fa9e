"""The state of a cluster as tables of integers, the events that change it, its snapshots, and the journal."""
