"""The calendar: what every node is committed to from now on, and when a gang can start around that."""
