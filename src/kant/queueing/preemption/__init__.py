"""Which running jobs are evicted for which waiting job."""
