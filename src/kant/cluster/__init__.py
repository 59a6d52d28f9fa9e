"""What the cluster holds, in columns: state, snapshot, trial and journal."""
