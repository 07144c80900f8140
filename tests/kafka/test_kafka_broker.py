"""The broker that tests of Kafka use: it survives being killed, and refuses who has no rights."""

from __future__ import annotations

import pytest
from kafka_topics import fresh_topic, produce, values

pytestmark = pytest.mark.slow


def test_a_broker_that_was_killed_comes_back_with_its_records_at_the_same_place(kafka_broker):
    topic, place = fresh_topic(kafka_broker), kafka_broker.bootstrap
    produce(kafka_broker, topic, [b"1", b"2"])
    kafka_broker.kill()
    assert not kafka_broker.is_running
    kafka_broker.start()
    assert kafka_broker.bootstrap == place
    assert values(kafka_broker, topic) == [b"1", b"2"]
