"""Back ends of keyed and operator state, and the format of their snapshots."""
