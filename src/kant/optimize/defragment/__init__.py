"""The defragmenter: a limited number of migrations that leave the free capacity in usable blocks, and a bound."""
