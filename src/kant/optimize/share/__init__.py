"""Sharing GPUs in rounds among jobs whose speed changes: policies, the window program, and rounds as published."""
