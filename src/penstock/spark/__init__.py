"""The Spark shell: slots as Spark tasks, the job on the driver, DataFrames as sources and sinks. Only this package
calls Spark."""
