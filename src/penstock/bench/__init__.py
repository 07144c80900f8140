"""Benchmarks and torture: what measures a job on a real Spark, and what kills its workers while it is measured.

Slots of the benchmarks import some of these files, so the package itself imports none of them.
"""
