"""How clients reach a Kafka cluster, and what errors of the cluster say to a user.

A client learns from callbacks, and not from the call that fails, why it cannot connect: so the first call of a job
listens to the callbacks, and the text of its error has the reason.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.api.secrets import Secret
from penstock.connectors.kafka.clock import Deadline
from penstock.core.errors import ExternalError, Retry, StreamError, UsageError

Setting = str | int | float | bool | Secret
"""The value of a setting of the client."""

CONNECT_WITHIN_S = 15.0
"""How long the first call of a job waits for a broker."""
_ASK_S = 2.0
_HANDSHAKE = "SSL handshake failed"
_OWN = (
    "bootstrap.servers",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "enable.partition.eof",
    "isolation.level",
    "transactional.id",
    "enable.idempotence",
    "acks",
)
"""Settings that the connector decides."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """The address of a cluster, and settings for every client. Secrets are references until a client is made."""

    bootstrap: str
    settings: tuple[tuple[str, Setting], ...] = field(default=(), repr=False)

    def client(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of a client. Settings of the user come before the connector's own defaults."""
        given = {name: value.reveal() if isinstance(value, Secret) else value for name, value in self.settings}
        return {"bootstrap.servers": self.bootstrap, "client.id": "penstock", "log_level": 2, **own, **given}

    def admin(self, seen: list[Any] | None = None) -> Any:
        """A client that asks about topics. Errors that the client notices by itself are added to `seen`."""
        from confluent_kafka.admin import AdminClient

        listen = {} if seen is None else {"error_cb": seen.append}
        return made(AdminClient, self.client(listen))


def connection(bootstrap: str | Sequence[str], settings: Mapping[str, Setting] | None) -> Connection:
    """The connection for a user's arguments. Raises `UsageError`."""
    if importlib.util.find_spec("confluent_kafka") is None:
        raise UsageError(
            "Kafka needs the package confluent-kafka, which is not installed",
            hint="pip install 'penstock[kafka]', on the driver and on all executors",
        )
    text = bootstrap if isinstance(bootstrap, str) else ",".join(bootstrap)
    if not text.strip():
        raise UsageError(f"bootstrap is {bootstrap!r}", hint="give host:port of one or more brokers")
    for name in settings or {}:
        if name in _OWN:
            raise UsageError(
                f"config sets {name!r}, which the connector sets itself",
                hint="leave the setting out; bootstrap, group and isolation are arguments of their own",
            )
    return Connection(bootstrap=text, settings=tuple((settings or {}).items()))


def made(kind: Any, config: dict[str, Any]) -> Any:
    """A client of confluent-kafka. Raises `UsageError` for a setting that does not exist."""
    from confluent_kafka import KafkaException

    try:
        return kind(config)
    except KafkaException as error:
        reason = error.args[0]
        text = reason.str() if hasattr(reason, "str") else str(reason)
        raise UsageError(f"a setting for Kafka is wrong: {text}", hint="see config=") from error


@dataclass(frozen=True, kw_only=True)
class TopicInfo:
    """What the cluster says of a topic."""

    name: str
    partitions: int
    id: str
    """Another topic of the same name has another id. Empty if the cluster does not tell."""


def known_topics(cluster: Connection, *, within_s: float = CONNECT_WITHIN_S) -> tuple[Any, list[str]]:
    """A client that has connected, and the names of all topics that the user may see. Raises `ExternalError`, with the
    reason, if no broker can be reached or the cluster refuses the user."""
    from confluent_kafka import KafkaException

    seen: list[Any] = []
    admin = cluster.admin(seen)
    deadline = Deadline(within_s)
    while True:
        try:
            found = admin.list_topics(timeout=_ASK_S)
        except KafkaException as error:
            admin.poll(0)
            refusal = next((each for each in seen if _is_final(each)), None)
            if refusal is not None:
                raise explained(refusal, cluster) from error
            if deadline.is_over:
                telling = [each for each in seen if each.name() != "_ALL_BROKERS_DOWN"]
                raise explained((telling or seen or [error.args[0]])[-1], cluster) from error
        else:
            return admin, sorted(found.topics)


def described(admin: Any, cluster: Connection, names: Sequence[str], *, to_write: bool = False) -> list[TopicInfo]:
    """What the cluster says of these topics. Raises `UsageError` if a topic does not exist, and `ExternalError` if the
    user may not read it, or may not write it."""
    from confluent_kafka import KafkaException, TopicCollection
    from confluent_kafka.admin import AclOperation

    needed = AclOperation.WRITE if to_write else AclOperation.READ
    found: list[TopicInfo] = []
    asked = admin.describe_topics(TopicCollection(list(names)), include_authorized_operations=True)
    for name, future in asked.items():
        try:
            topic = future.result(CONNECT_WITHIN_S)
        except KafkaException as error:
            raise explained(error.args[0], cluster, topic=name, admin=admin) from error
        except TimeoutError as error:
            raise _away(cluster, "the cluster does not say which topics it has") from error
        allowed = topic.authorized_operations
        if allowed is not None and needed not in allowed:
            raise ExternalError(
                f"Kafka at {cluster.bootstrap} does not let this user {needed.name.lower()} topic {name!r}",
                hint=f"grant the user the right to {needed.name.lower()} the topic",
            )
        found.append(TopicInfo(name=name, partitions=len(topic.partitions), id=str(topic.topic_id or "")))
    return found


def explained(error: Any, cluster: Connection, *, topic: str | None = None, admin: Any = None) -> StreamError:
    """The error of this package for an error of the client."""
    name, text = error.name(), error.str()
    at = f"Kafka at {cluster.bootstrap}"
    if name in ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM"):
        return ExternalError(
            f"{at} refuses the user or the password: {text}",
            hint="see sasl.username, sasl.password and sasl.mechanism in config=",
        )
    if name == "_SSL" or _HANDSHAKE in text:
        return ExternalError(
            f"no encrypted connection to {at} came up: {text}",
            hint="see security.protocol and ssl.ca.location in config=, and that the port is the one for TLS",
        )
    if name.endswith("AUTHORIZATION_FAILED"):
        what = f"topic {topic!r}" if topic is not None else text
        return ExternalError(
            f"{at} does not let this user do that: {what}: {name}",
            hint="grant the user: read and describe for a source; write, describe, the group and the transactional id "
            "for a sink",
        )
    if name in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"):
        return UsageError(f"{at} has no topic {topic or text!r}", hint=_likely(topic, admin))
    if name in ("_ALL_BROKERS_DOWN", "_TRANSPORT", "_TIMED_OUT", "_RESOLVE", "_TIMED_OUT_QUEUE", "REQUEST_TIMED_OUT"):
        return _away(cluster, text)
    # Most of what is left is said while brokers come and go: who leads a partition, who coordinates a group.
    return ExternalError(f"{at}: {text} ({name})", retry=Retry.LATER)


def _is_final(error: Any) -> bool:
    """Whether waiting cannot help."""
    refusals = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "_SSL")
    return error.name() in refusals or _HANDSHAKE in error.str()


def _away(cluster: Connection, text: str) -> ExternalError:
    return ExternalError(
        f"no broker of Kafka answers at {cluster.bootstrap}: {text}",
        hint="see that the address is right, that the brokers run and can be reached from this host, and that "
        "security.protocol in config= is the one of this port",
        retry=Retry.LATER,
    )


def _likely(topic: str | None, admin: Any) -> str:
    from confluent_kafka import KafkaException

    if topic is None or admin is None:
        return "make the topic first"
    try:
        names = list(admin.list_topics(timeout=_ASK_S).topics)
    except KafkaException:
        names = []
    close = difflib.get_close_matches(topic, names, n=1)
    return f"did you mean {close[0]!r}? Or make the topic first" if close else "make the topic first"
