"""The calendar: the present and future commitments of every node, and when a gang can start around them."""
