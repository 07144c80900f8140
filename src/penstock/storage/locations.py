"""From the text that names a directory to the store that reads and writes there."""

from __future__ import annotations

import os
from functools import partial

from penstock.core.recovery import roots
from penstock.storage.files import FileStore
from penstock.storage.remote import RemoteStore
from penstock.storage.seals import PLAIN, StoreOptions


def open_store(root: str | os.PathLike[str], *, options: StoreOptions = PLAIN) -> FileStore | RemoteStore:
    """The store below `root`: a path or `file:` URL of this host, or the URI of another file system. Nothing is read or
    written before the first call. Raises `UsageError` if `root` is neither a path nor such a URI."""
    text = os.fspath(root)
    opener = partial(open_store, options=options)
    if roots.is_local(text):
        return FileStore(text, opener=opener, options=options)
    return RemoteStore(text, opener=opener, options=options)
