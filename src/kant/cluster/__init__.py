"""The cluster state in columns: state, snapshot, trial and journal."""
