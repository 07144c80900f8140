"""The pure core: machines that decide and never act. No clock, no thread, no socket, no file."""
