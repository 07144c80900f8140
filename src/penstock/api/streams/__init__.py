"""The kinds of streams that a program is written with, one module each."""
