"""What a user asks of a cluster at the command line, with the user's own rights."""
