"""The data types: cluster, job, event and decision. They have no behaviour beyond arithmetic."""
