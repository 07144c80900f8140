"""Parts that commands and benchmarks share: a Spark session, jobs that end with a block of code, errors in one line,
and the display of a running job."""
