"""A real Kafka broker of this machine, for tests, for benchmarks and for trying things out.

The broker is Kafka itself: one node, on free ports of loopback, with its data in a folder. Maven brings its jars, about
44 MB, on first use; they are kept in the cache folder of the user. The broker can be killed and started again, on the
same ports and with the same data.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import importlib.util
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.core.errors import ExternalError, HostError, Retry
from penstock.spark.java import check_java

KAFKA_VERSION = "4.3.1"
LOG4J_VERSION = "2.25.4"
STARTS_WITHIN_S = 120.0
STOPS_WITHIN_S = 30.0
FETCHES_WITHIN_S = 600.0
_LOOPBACK = "127.0.0.1"
_LOOK_EVERY_S = 0.1
_ASSIGNED = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_FIRST = 32_768
_LEAST_PORT = 10_000
_PORTS_TRIED = 200
_ASK_S = 5.0

_POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId><artifactId>broker</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
      <version>{LOG4J_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""

_LOGGING = """rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
"""


def missing() -> str | None:
    """Why no broker can be started here; None if nothing is known to be missing."""
    try:
        check_java(os.environ)
    except HostError as error:
        return error.message
    if importlib.util.find_spec("confluent_kafka") is None:
        return "confluent-kafka is not installed"
    if not _is_complete(_jars_folder()) and shutil.which("mvn") is None:
        return "Maven (mvn) was not found, which brings the jars of Kafka"
    return None


class KafkaBroker:
    """A broker that runs while a `with` block does.

    Topics are not made by themselves: say `create_topic`. A broker that was killed is started again by `start`.
    """

    def __init__(
        self, folder: Path, *, users: Mapping[str, str] | None = None, properties: Mapping[str, str] | None = None
    ) -> None:
        """`folder` gets the data and the log. `users`, names with passwords, get a listener of their own,
        `secured_bootstrap`, and have no rights until someone grants rights. `properties` are settings of the broker."""
        self._folder = folder
        self._users = dict(users or {})
        self._properties = dict(properties or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = _free_ports(3)

    @property
    def bootstrap(self) -> str:
        """Where clients find the broker."""
        return f"{_LOOPBACK}:{self._ports[0]}"

    @property
    def secured_bootstrap(self) -> str:
        """Where `users` find the broker, with SASL PLAIN."""
        return f"{_LOOPBACK}:{self._ports[2]}"

    @property
    def is_running(self) -> bool:
        """Whether the process of the broker runs."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Bring the jars if need be, start the broker, and wait until the broker answers. Raises `ExternalError`."""
        if self.is_running:
            return
        jars = kafka_jars()
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "server.properties"
        if not config.exists():
            config.write_text(self._server_properties(), encoding="utf-8")
            (self._folder / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
            self._run(jars, "kafka.tools.StorageTool", "format", "--standalone", "-t", _fresh_id(), "-c", str(config))
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java(jars), "kafka.Kafka", str(config)], stdout=log, stderr=subprocess.STDOUT, cwd=self._folder
            )
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() >= deadline:
                text = (self._folder / "log").read_text(encoding="utf-8", errors="replace")[-2_000:]
                self.kill()
                raise ExternalError(f"the broker did not start: {text}", retry=Retry.LATER)
            time.sleep(_LOOK_EVERY_S)

    def stop(self) -> None:
        """End the broker in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker at once, as a failure of the machine would."""
        self._end(signal.SIGKILL)

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Make a topic, and wait until the broker knows it."""
        from confluent_kafka.admin import NewTopic

        made = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin = self.admin()
        for future in admin.create_topics([made]).values():
            future.result(STARTS_WITHIN_S)
        # The controller has made the topic, and the broker hears of it a moment later.
        deadline = time.monotonic() + STARTS_WITHIN_S
        while len(admin.list_topics(name, timeout=_ASK_S).topics[name].partitions) < partitions:
            if time.monotonic() >= deadline:
                raise ExternalError(f"topic {name!r} was made, and the broker does not know it", retry=Retry.LATER)
            time.sleep(_LOOK_EVERY_S)

    def admin(self) -> Any:
        """A confluent-kafka `AdminClient`."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap})

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((_LOOPBACK, self._ports[0]), timeout=_ASK_S):
            from confluent_kafka import KafkaException
            from confluent_kafka.admin import AdminClient

            quiet: dict[str, Any] = {"bootstrap.servers": self.bootstrap, "log_level": 0}
            try:
                return bool(AdminClient(quiet).list_topics(timeout=_ASK_S).brokers)
            except KafkaException:
                return False
        return False

    def _java(self, jars: Path) -> list[str]:
        quick = ("-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        logging = f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}"
        return [check_java(os.environ), *quick, logging, "-cp", f"{jars}/*"]

    def _run(self, jars: Path, *command: str) -> None:
        ran = subprocess.run([*self._java(jars), *command], capture_output=True, text=True, check=False)
        if ran.returncode:
            raise ExternalError(f"{command[0]} failed: {(ran.stdout + ran.stderr)[-2_000:]}")

    def _server_properties(self) -> str:
        own, controller, secured = self._ports
        listeners = [f"PLAINTEXT://{_LOOPBACK}:{own}", *self._for_users(f"SASL_PLAINTEXT://{_LOOPBACK}:{secured}")]
        protocols = ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", *self._for_users("SASL_PLAINTEXT:SASL_PLAINTEXT")]
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"{_LOOPBACK}:{controller}",
            "listeners": ",".join([*listeners, f"CONTROLLER://{_LOOPBACK}:{controller}"]),
            "advertised.listeners": ",".join(listeners),
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join(protocols),
            "log.dirs": str(self._folder / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
        }
        if self._users:
            known = " ".join(f'user_{name}="{password}"' for name, password in self._users.items())
            settings |= {
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                    f"org.apache.kafka.common.security.plain.PlainLoginModule required {known};"
                ),
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
            }
        return "".join(f"{name}={value}\n" for name, value in (settings | self._properties).items())

    def _for_users(self, text: str) -> Sequence[str]:
        return (text,) if self._users else ()


def kafka_jars() -> Path:
    """The folder with the jars of Kafka. Maven fetches them on first use. Raises `HostError` or `ExternalError`."""
    folder = _jars_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.parent / f"{folder.name}.lock"):
        if _is_complete(folder):
            return folder
        maven = shutil.which("mvn")
        if maven is None:
            raise HostError("Maven (mvn) was not found, which brings the jars of Kafka", hint="install Maven")
        work = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.part")
        work.mkdir()
        try:
            (work / "pom.xml").write_text(_POM, encoding="utf-8")
            ran = subprocess.run(
                [maven, "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=libs"],
                cwd=work,
                capture_output=True,
                text=True,
                check=False,
                timeout=FETCHES_WITHIN_S,
            )
            if ran.returncode:
                raise ExternalError(
                    f"Maven could not fetch Kafka {KAFKA_VERSION}: {(ran.stdout + ran.stderr)[-1_000:]}",
                    hint="see that this machine reaches a repository of Maven",
                    retry=Retry.LATER,
                )
            (work / "libs").rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder


def _jars_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "penstock" / f"kafka-{KAFKA_VERSION}"


def _is_complete(folder: Path) -> bool:
    # The folder gets its name when all jars are in it.
    return folder.is_dir()


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Only one process at a time fetches the jars."""
    with lock.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def _fresh_id() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")


def _free_ports(count: int) -> tuple[int, ...]:
    """Ports at which nobody listens, and which the system gives to nobody who asks for any: while the broker is away no
    other process, and not even a client that calls the broker, gets its ports by chance."""
    first_assigned = int(_ASSIGNED.read_text(encoding="utf-8").split()[0]) if _ASSIGNED.exists() else _USUAL_FIRST
    free: list[int] = []
    for port in random.SystemRandom().sample(range(_LEAST_PORT, first_assigned), _PORTS_TRIED):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((_LOOPBACK, port))
            free.append(port)
        if len(free) == count:
            return tuple(free)
    raise HostError(f"no free ports were found between {_LEAST_PORT} and {first_assigned}")
