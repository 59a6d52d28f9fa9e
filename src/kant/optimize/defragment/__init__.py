"""The defragmenter: at most so many migrations that leave the free capacity in usable blocks, and a bound for them."""
