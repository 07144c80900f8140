"""A daemon for Spark's Python workers that has imported what a slot needs before it forks them.

Spark forks every Python worker from a daemon, and a fresh worker spends most of its start on imports. With

    spark.python.daemon.module   penstock.spark.warm_daemon

they are done once, and a slot that replaces a dead one is up sooner. It is opt-in, for two reasons: the setting holds
for all Python workers of the Spark application, and one of the imported libraries starts a native thread, which a
forked process does not have. Nothing that holds sockets, threads or random state of its own is made here.
"""

from __future__ import annotations

import os
import sys
import zipimport

WARM_SETTINGS = {"spark.python.daemon.module": "penstock.spark.warm_daemon"}
"""What to set in Spark's configuration, before the session is made."""

MODULES = (
    "polars",
    "pandas",
    "pyarrow",
    "pyarrow.pandas_compat",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "cloudpickle",
    "penstock",
    "penstock.net.zeromq",
    "penstock.runtime.slot.driver",
    "penstock.spark.background",
    "penstock.spark.clock",
    "penstock.spark.collector",
    "penstock.spark.worker",
    "penstock.storage.locations",
)


def main() -> None:
    """Import, then be PySpark's own daemon."""
    import gc
    import importlib

    # Polars reads it when it is imported; a slot has one core.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    for module in MODULES:
        try:
            importlib.import_module(module)
        except ImportError as error:
            # A worker that really needs it will say so again, where it is seen.
            sys.stderr.write(f"penstock: {module} cannot be imported beforehand: {error}\n")
    forget_archives()
    # What is here stays: the collector of a forked process need not touch, and so copy, all of it.
    gc.freeze()
    from pyspark.daemon import manager

    manager()


def forget_archives() -> None:
    """Each worker looks anew at all places that modules were imported from, and PySpark comes in an archive whose whole
    directory is then read once for each of its packages. A place that is not known is looked at when it is needed."""
    for place, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[place]


if __name__ == "__main__":
    main()
