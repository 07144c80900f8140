"""Hosts on this machine, in network namespaces: each has an address, a cable and temporary files of its own. All have
the same name, as machines that were copied from one image have."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO


def missing() -> str | None:
    """Why there cannot be hosts here, or None."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if shutil.which("ip") is None or shutil.which("mount") is None:
        return "the commands ip and mount are needed"
    probe = f"psprobe{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True).returncode:
        return "network namespaces cannot be made here"
    _ip("netns", "del", probe)
    return None


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class Hosts:
    """So many hosts, joined by a switch. Use as a context: processes that it started are killed at the end."""

    def __init__(self, count: int) -> None:
        self._switch = f"ps{os.getpid()}s"
        self.names = [f"ps{os.getpid()}h{number}" for number in range(count)]
        # Paths of sockets must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="ps"))
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Hosts:
        (self.folder / "t").mkdir()
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for number, name in enumerate(self.names):
            (self.folder / str(number)).mkdir()
            _ip("netns", "add", name)
            _ip(
                "-n",
                self._switch,
                "link",
                "add",
                f"cable{number}",
                "type",
                "veth",
                "peer",
                "name",
                "net",
                "netns",
                name,
            )
            _ip("-n", self._switch, "link", "set", f"cable{number}", "master", "bridge", "up")
            _ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "net")
            _ip("-n", name, "link", "set", "net", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        for name in (*self.names, self._switch):
            # What those have started, such as Spark's executors and their workers, is theirs alone.
            pids = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True, text=True).stdout
            for pid in pids.split():
                subprocess.run(["kill", "-KILL", pid], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "del", name], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def address(number: int) -> str:
        """Of one of the hosts."""
        return f"10.77.0.{10 + number}"

    def inside(self, number: int) -> list[str]:
        """What comes before a command so that it runs on a host."""
        enter = 'mount --bind "$0" "$1" && export TMPDIR="$1" && shift && exec "$@"'
        folders = [str(self.folder / str(number)), str(self.folder / "t")]
        return ["ip", "netns", "exec", self.names[number], "sh", "-c", enter, *folders]

    def start(
        self, number: int, command: Sequence[str], *, environment: Mapping[str, str], output: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """A process on a host."""
        process = subprocess.Popen(
            [*self.inside(number), *command],
            env={**os.environ, "SPARK_LOCAL_IP": self.address(number), **environment},
            cwd=self.folder,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        self._processes.append(process)
        return process

    def commands(self) -> dict[str, list[str]]:
        """What a process on any host runs to have these happen."""
        last = len(self.names) - 1
        cable = ["ip", "-n", self._switch, "link", "set", f"cable{last}"]
        route = ["blackhole", f"{self.address(last)}/32"]
        return {
            "part the last two": ["ip", "-n", self.names[last - 1], "route", "add", *route],
            "join the last two": ["ip", "-n", self.names[last - 1], "route", "del", *route],
            "pull the last cable": [*cable, "down"],
            "plug the last cable": [*cable, "up"],
        }

    def do(self, what: str) -> None:
        """Have one of these happen."""
        subprocess.run(self.commands()[what], check=True)
