"""The secret of a job: who knows it belongs to the job.

There is one CURVE key pair per job. It is made on the driver, travels inside the Spark tasks, and serves as server and
client key alike. Where TCP is not encrypted, a word derived from it is the password instead; the key itself never goes
over the wire.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import zmq

_PASSWORD_PERSON = b"penstock-plain"


@dataclass(frozen=True, kw_only=True)
class JobKeys:
    """The key pair of one job, as the 40 characters each that ZeroMQ uses."""

    public: bytes
    secret: bytes = field(repr=False)

    @property
    def password(self) -> bytes:
        """What members of the job show each other on a trusted network; tells nothing about the key pair."""
        return hashlib.blake2b(self.secret, digest_size=32, person=_PASSWORD_PERSON).hexdigest().encode()


def make_job_keys() -> JobKeys:
    """A fresh key pair."""
    public, secret = zmq.curve_keypair()
    return JobKeys(public=public, secret=secret)
