"""The real shell: slots as Spark tasks, the driver's side, DataFrames in and out. Only here is Spark called."""
