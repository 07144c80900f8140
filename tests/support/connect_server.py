"""A Spark Connect server in a process of its own, from the jars that come with PySpark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pyspark

START_S = 300.0
DRIVER = "127.0.0.2"
STARTED = re.compile(r"Spark Connect server started at: .*:(\d+)")


def command_of(home: Path, *, master: str, settings: Mapping[str, str]) -> list[str]:
    """What starts a server whose Spark has this master and these settings."""
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    return [str(home / "bin" / "spark-submit"), "--master", master, *options, *server]


class ConnectServer:
    """A server on loopback, at any free port, with a Spark of its own whose driver has another address. `packages` is
    what its workers can import."""

    def __init__(self, folder: Path, *, master: str, packages: str) -> None:
        home = Path(pyspark.__file__).parent
        self._log = folder / "connect-server.log"
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.driver.host": DRIVER,
            "spark.driver.bindAddress": DRIVER,
            "spark.connect.grpc.binding.port": "0",
            "spark.ui.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        environment = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": DRIVER, "PYSPARK_PYTHON": sys.executable}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command_of(home, master=master, settings=settings),
                cwd=folder,
                env=os.environ | environment | {"PYTHONPATH": packages},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self.address = f"sc://127.0.0.1:{self.wait_for(STARTED)[1]}"
        except BaseException:
            self.close()
            raise

    def wait_for(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """The first place of the server's log where it says this."""
        deadline = time.monotonic() + START_S
        while (found := pattern.search(self._log.read_text(encoding="utf-8", errors="replace"))) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the Connect server never said {pattern.pattern}: {self._log.read_text()[-3_000:]}")
            time.sleep(0.05)
        return found

    def close(self) -> None:
        """End it, and with it its workers."""
        self._process.terminate()
        self._process.wait(60)
