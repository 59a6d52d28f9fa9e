"""The scheduler: one cycle from snapshot to plan. Read `cycle` first."""
