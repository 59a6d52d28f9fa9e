"""What users do on a cluster from the command line or the web page, with their own rights."""
