"""The fallback packer: what could still be placed, which pods must move for that, and the proof that no more fit."""
