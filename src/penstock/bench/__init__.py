"""Benchmarks, which measure jobs on a real Spark, and torture, which kills the workers of a job.

Slots of these jobs import some files of this package. So the package itself imports no file.
"""
