"""Objects of the API as nodes, jobs and queues of the model: pure functions of the objects."""
