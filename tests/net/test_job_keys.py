from __future__ import annotations

import pickle

from penstock.net.keys import make_job_keys


def test_every_job_has_keys_of_its_own():
    one, other = make_job_keys(), make_job_keys()
    assert len({one.public, one.secret, other.public, other.secret}) == 4
    assert one.password != other.password


def test_keys_travel_inside_a_task():
    keys = make_job_keys()
    assert pickle.loads(pickle.dumps(keys)) == keys


def test_the_secret_is_not_shown():
    keys = make_job_keys()
    assert keys.secret.decode() not in f"{keys!r} {keys}"


def test_the_password_is_the_same_everywhere_and_does_not_contain_the_secret():
    keys = make_job_keys()
    assert keys.password == pickle.loads(pickle.dumps(keys)).password
    assert keys.secret not in keys.password
    assert len(keys.password) == 64
