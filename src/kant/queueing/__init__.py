"""QSCH, the queue half: which job may go next."""
