"""Operations of users on a cluster from the command line, with the user's own rights."""
