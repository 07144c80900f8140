"""How a task's inputs turn barriers on their channels into one snapshot: aligned, unaligned, or only tracked."""
