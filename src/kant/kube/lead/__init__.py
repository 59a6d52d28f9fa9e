"""One replica: leader election, and the loop that schedules while it leads."""
