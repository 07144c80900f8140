"""The operators that the steps of a program become, working on whole record batches."""
