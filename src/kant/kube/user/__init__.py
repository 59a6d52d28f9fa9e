"""What users do on a cluster from the command line or the page, with the user's own rights."""
