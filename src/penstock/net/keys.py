"""The secret of a job: a process that has the secret is a member of the job.

There is one CURVE key pair per job. The key pair is made on the driver, travels inside the Spark tasks, and serves as
server key and as client key. Where TCP is not encrypted, members show a password instead, which is derived from the key
pair; the secret key itself never goes over the wire.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import zmq

_PASSWORD_PERSON = b"penstock-plain"


@dataclass(frozen=True, kw_only=True)
class JobKeys:
    """The key pair of one job, in ZeroMQ's form: 40 characters for each key."""

    public: bytes
    secret: bytes = field(repr=False)

    @property
    def password(self) -> bytes:
        """The password that members of the job show each other on a trusted network. Nobody can find the key pair from
        the password."""
        return hashlib.blake2b(self.secret, digest_size=32, person=_PASSWORD_PERSON).hexdigest().encode()


def make_job_keys() -> JobKeys:
    """A fresh key pair."""
    public, secret = zmq.curve_keypair()
    return JobKeys(public=public, secret=secret)
