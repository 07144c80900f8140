"""What commands and benchmarks share: a Spark session, jobs that end with their block, errors as a line, the screen."""
