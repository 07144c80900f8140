"""A ZooKeeper server of this host, from the jars that PySpark brings along, in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

import pyspark
from ports import own_port

STARTS_WITHIN_S = 180


class ZooKeeperServer:
    """A server on loopback that keeps its data in a folder, whatever happens to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = (folder / "log").open("w")
        self.port = own_port()
        self._config = folder / "zoo.cfg"
        self._config.write_text(
            f"clientPort={self.port}\nclientPortAddress=127.0.0.1\ndataDir={folder / 'data'}\n"
            "tickTime=200\nminSessionTimeout=400\nmaxSessionTimeout=60000\nadmin.enableServer=false\n"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def hosts(self) -> str:
        """Where clients find it."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Come up, and take calls."""
        java_home = os.environ.get("JAVA_HOME")
        jars = Path(pyspark.__file__).parent / "jars"
        self._process = subprocess.Popen(
            [
                f"{java_home}/bin/java" if java_home else "java",
                "-Xmx128m",
                "-cp",
                f"{jars}/*",
                "org.apache.zookeeper.server.ZooKeeperServerMain",
                str(self._config),
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
        )
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() >= deadline:
                raise RuntimeError(f"ZooKeeper did not start: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Die at once; what was acknowledged is on the disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Be gone for good."""
        self.stop()
        self._log.close()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"srvr")
                return b"Mode" in connection.recv(4096)
        except OSError:
            return False
