"""A ZooKeeper server of this host, from the jars that PySpark brings along, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyspark
import short_lived_jvms
from ports import own_port

STARTS_WITHIN_S = 180


_ASKS = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1) as connection:
    connection.sendall(b"srvr")
    sys.exit(b"Mode" not in connection.recv(4096))
"""


class ZooKeeperServer:
    """A server on loopback that keeps its data in a folder, whatever happens to it. Or at an address of another host:
    `inside` is what has a command run there."""

    def __init__(self, folder: Path, *, address: str = "127.0.0.1", inside: Sequence[str] = ()) -> None:
        self._folder = folder
        self._address = address
        self._inside = inside
        self._log = (folder / "log").open("w")
        self.port = own_port()
        self._config = folder / "zoo.cfg"
        self._config.write_text(
            f"clientPort={self.port}\nclientPortAddress={address}\ndataDir={folder / 'data'}\n"
            "tickTime=200\nminSessionTimeout=400\nmaxSessionTimeout=60000\nadmin.enableServer=false\n"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def hosts(self) -> str:
        """Where clients find it."""
        return f"{self._address}:{self.port}"

    def start(self) -> None:
        """Come up, and take calls."""
        jars = Path(pyspark.__file__).parent / "jars"
        self._process = subprocess.Popen(
            [
                *self._inside,
                short_lived_jvms.java() or "java",
                "-Xmx128m",
                *short_lived_jvms.COMPILE_QUICKLY.split(),
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
        asks = [*self._inside, sys.executable, "-c", _ASKS, self._address, str(self.port)]
        return subprocess.run(asks, check=False, capture_output=True).returncode == 0
