"""Pure functions that turn API objects into nodes, jobs and queues of the core's model."""
