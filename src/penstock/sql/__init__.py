"""What Spark's types and expressions mean here.

`kernels` and `values` compute as Spark does. `text` is a front end over both: `text` turns the SQL text of a user into
Polars expressions.
"""
