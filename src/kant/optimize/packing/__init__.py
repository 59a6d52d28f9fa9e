"""The fallback packer: what could still be placed, which pods must move for it, and a proof that no more pods fit."""
