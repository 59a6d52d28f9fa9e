"""One replica of Kant: leader election, and the loop that schedules while the replica leads."""
