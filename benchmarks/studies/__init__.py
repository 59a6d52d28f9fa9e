"""Longer studies: one command each, with their page of results in docs/."""
