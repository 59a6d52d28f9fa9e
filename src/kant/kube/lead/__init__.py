"""One replica: leader election, and the loop that decides while it leads."""
