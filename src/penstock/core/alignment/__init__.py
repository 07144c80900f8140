"""How far a source may read ahead of the other sources of its watermark group."""
