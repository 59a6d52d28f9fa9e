"""What a place costs: the job in speed, and the typical pods in room."""
