"""What a user is told when a cluster cannot be reached, or refuses: one error each, when the job starts."""

from __future__ import annotations

import io
import logging
import pickle
import socket
import time

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from kafka_topics import fresh_topic

import penstock as ps
from penstock.connectors.kafka import connection as connections
from penstock.core.errors import ExternalError, Fault, UsageError, fault_of

pytestmark = pytest.mark.slow

PASSWORD = "wonderland"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(connections, "CONNECT_WITHIN_S", 3.0)


def source(broker, topic, *, bootstrap=None, **options):
    return ps.kafka(topic, bootstrap=bootstrap or broker.bootstrap, format="raw", **options)


def secured(password=PASSWORD, user="alice", mechanism="PLAIN"):
    return {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": user,
        "sasl.password": password,
    }  # fmt: skip


def allow(broker, topic, *operations):
    admin = broker.admin()
    bindings = [
        AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    for future in admin.create_acls(bindings).values():
        future.result(30)


def test_nobody_answers(kafka_broker):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ExternalError, match=f"no broker of Kafka answers at {nobody}: .*refused") as raised:
            connections.known_topics(source(kafka_broker, "t", bootstrap=nobody).reading.cluster, within_s=3)
    assert fault_of(raised.value) is Fault.PASSING


def test_a_topic_that_does_not_exist(kafka_broker):
    topic = fresh_topic(kafka_broker)
    with pytest.raises(UsageError, match=f"has no topic '{topic}x'") as raised:
        source(kafka_broker, f"{topic}x").splits(1)
    assert f"did you mean '{topic}'" in str(raised.value)


def test_a_wrong_password_is_said_at_once_and_never_shown(kafka_broker):
    given = source(kafka_broker, "t", bootstrap=kafka_broker.secured_bootstrap, config=secured("looking-glass"))
    began = time.monotonic()
    with pytest.raises(ExternalError, match="refuses the user or the password") as raised:
        given.splits(1)
    assert time.monotonic() - began < connections.CONNECT_WITHIN_S * 5
    assert fault_of(raised.value) is not Fault.PASSING
    assert "looking-glass" not in str(raised.value)


def test_a_mechanism_that_the_cluster_does_not_have(kafka_broker):
    given = source(
        kafka_broker, "t", bootstrap=kafka_broker.secured_bootstrap, config=secured(mechanism="SCRAM-SHA-256")
    )
    with pytest.raises(ExternalError, match=r"refuses the user or the password: .*mechanism"):
        given.splits(1)


def test_tls_to_a_port_without_tls(kafka_broker):
    with pytest.raises(ExternalError, match="no encrypted connection"):
        source(kafka_broker, "t", config={"security.protocol": "SSL"}).splits(1)


def test_no_password_where_one_is_needed(kafka_broker):
    cluster = source(kafka_broker, "t", bootstrap=kafka_broker.secured_bootstrap).reading.cluster
    with pytest.raises(ExternalError, match="no broker of Kafka answers") as raised:
        connections.known_topics(cluster, within_s=3)
    assert "security.protocol" in str(raised.value)


def test_no_right_to_read_or_to_write(kafka_broker):
    topic = fresh_topic(kafka_broker)
    at = kafka_broker.secured_bootstrap
    hidden = source(kafka_broker, topic, bootstrap=at, config=secured())
    with pytest.raises((ExternalError, UsageError), match=f"topic '{topic}'"):
        hidden.splits(1)
    allow(kafka_broker, topic, AclOperation.DESCRIBE)
    with pytest.raises(ExternalError, match=f"does not let this user read topic '{topic}'"):
        hidden.splits(1)
    sink = ps.kafka_sink(topic, bootstrap=at, config=secured(), delivery="at-least-once")
    with pytest.raises(ExternalError, match=f"does not let this user write topic '{topic}'"):
        sink._look("run")
    allow(kafka_broker, topic, AclOperation.WRITE, AclOperation.READ)
    sink._look("run")
    transactional = ps.kafka_sink(topic, bootstrap=at, config=secured())
    with pytest.raises(ExternalError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        transactional._look("run")
    assert hidden.splits(1)


def test_secrets_are_read_where_they_are_used_and_shown_nowhere(kafka_broker, monkeypatch, caplog):
    topic = fresh_topic(kafka_broker)
    allow(kafka_broker, topic, AclOperation.READ, AclOperation.DESCRIBE)
    given = source(
        kafka_broker,
        topic,
        bootstrap=kafka_broker.secured_bootstrap,
        config=secured(ps.secret("env:KAFKA_PASSWORD")),
        stop="latest",
    )
    with pytest.raises(UsageError, match="environment variable KAFKA_PASSWORD is not set"):
        given.splits(1)
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    with caplog.at_level(logging.DEBUG):
        splits = given.splits(1)
        given.open(splits).close()
    plain = source(kafka_broker, topic, config=secured(PASSWORD))
    shown = [
        repr(given),
        str(given),
        repr(plain),
        pickle.dumps(given).decode("latin-1"),
        caplog.text,
        *map(repr, splits),
    ]
    assert not [text for text in shown if PASSWORD in text]


def test_a_setting_that_does_not_exist_and_one_that_is_the_connectors(kafka_broker):
    with pytest.raises(UsageError, match=r'No such configuration property: "no\.such\.setting"'):
        source(kafka_broker, "t", config={"no.such.setting": "1"}).splits(1)
    with pytest.raises(UsageError, match=r"config sets 'group\.id'"):
        source(kafka_broker, "t", config={"group.id": "1"})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"format": "xml"}, "format is 'xml'"),
        ({"format": "json"}, "needs a schema"),
        ({"start": "group-offsets"}, "needs the name of the group"),
        ({"start": "begin"}, "start is 'begin'"),
        ({"metadata": ["value"]}, "metadata is 'value'"),
        ({"metadata": {"key": "value"}}, "two columns 'value'"),
        ({"on_missing": "skip"}, "on_missing is 'skip'"),
        ({"bootstrap": ""}, "bootstrap is ''"),
        ({"topics": []}, r"topics is \[\]"),
        ({"start": {9: 0}}, None),
    ],
)
def test_wrong_arguments(options, told):
    given = {"topics": "t", "bootstrap": "localhost:9092", "format": "raw"} | options
    topics = given.pop("topics")
    if told is None:
        ps.kafka(topics, **given)
        return
    with pytest.raises(UsageError, match=told):
        ps.kafka(topics, **given)


def test_a_secret_is_a_reference():
    for given in ("wonderland", "env:", 7):
        with pytest.raises(UsageError) as raised:
            ps.secret(given)
        assert "wonderland" not in str(raised.value)
    assert str(ps.secret("file:/run/secrets/kafka")) == "secret('file:/run/secrets/kafka')"
    assert io.StringIO(repr(ps.secret("env:A"))).read().count("A") == 1
