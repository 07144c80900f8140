"""What a program is written with: streams, windows, durations, and the contracts of sources and sinks."""
