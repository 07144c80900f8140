"""Objects as bytes, by pickle: state whose type is `object`."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle

from penstock.core.errors import CorruptFile


class Pickle(bytes):
    """The bytes of an object that stays pickled. Such an object is read only to be written again, and must not be
    unpickled."""


def pickled(value: Any) -> bytes:
    """An object as bytes. Classes that cannot be imported by name travel with their definition."""
    if type(value) is Pickle:
        return bytes(value)
    try:
        return pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError):
        return bytes(cloudpickle.dumps(value, protocol=5))


def unpickled(data: bytes, *, what: str) -> Any:
    """The object of `pickled`. Raises `CorruptFile` naming `what`."""
    try:
        return pickle.loads(data)  # noqa: S301  # state that this job, or a job of this user, wrote
    except Exception as error:
        raise CorruptFile(
            f"an object in {what} cannot be unpickled: {type(error).__name__}: {error}",
            hint="make the object's class importable under the name that the class had when the snapshot was taken",
        ) from error
