"""A daemon for Spark's Python workers that imports the modules which a slot needs, before it forks the workers.

Spark forks every Python worker from a daemon, and a fresh worker spends most of its start on imports. With

    spark.python.daemon.module   penstock.spark.warm_daemon

the imports are done once, and a slot that replaces a lost slot is up sooner. The daemon is opt-in, for two reasons: the
setting holds for all Python workers of the Spark application, and one of the imported libraries starts a native thread,
which a forked process does not have. The daemon makes no object that has sockets, threads or random state of its own.
"""

from __future__ import annotations

import os
import sys
import zipimport

WARM_SETTINGS = {"spark.python.daemon.module": "penstock.spark.warm_daemon"}
"""The settings for Spark's configuration, to be set before the session is made."""

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
    """Import the modules, and then run PySpark's own daemon."""
    import gc
    import importlib

    # Polars reads the variable when Polars is imported. A slot has one core.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    for module in MODULES:
        try:
            importlib.import_module(module)
        except ImportError as error:
            # A worker that needs the module will fail with the same error, which reaches the user.
            sys.stderr.write(f"penstock: the warm daemon cannot import {module}: {error}\n")
    forget_archives()
    # The objects of the daemon stay. Otherwise the collector of a forked process would touch all these objects, and so
    # copy their memory.
    gc.freeze()
    from pyspark.daemon import manager

    manager()


def forget_archives() -> None:
    """Forget the archives that modules were imported from. Each worker looks anew at all places that the import system
    knows. PySpark comes in an archive, and a worker would read the whole directory of the archive once for each package
    in it. A place that the import system does not know is looked at only when it is needed."""
    for place, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[place]


if __name__ == "__main__":
    main()
