"""The nouns: what a cluster, a job, an event and a decision are. No behaviour beyond their arithmetic."""
