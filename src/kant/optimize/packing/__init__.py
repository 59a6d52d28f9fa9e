"""The fallback packer: what could still be placed, which pods must move for it, and the proof that no more fits."""
