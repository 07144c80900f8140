"""Roots of stores, as text: paths of this host, or URIs of other file systems.

    /var/checkpoints                    a path; so is file:///var/checkpoints
    s3://bucket/checkpoints?region=eu   a URI: scheme, place, and options behind a question mark

In a path every character stands for itself. In a URI `%` begins an encoded character and `?` ends the path. So the
functions here put a name below a root; joining text would be wrong.
"""

from __future__ import annotations

import re

SCHEMES = ("file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
"""The kinds of file system that a root may be on."""
OBJECT_STORES = ("s3", "gs", "gcs")
"""The schemes of object stores. In an object store a file appears when its upload is completed, and of several writers
who create the same file only one succeeds."""

# A single letter before the colon is a drive, not a scheme.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_SECRET = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^/?#@]*:[^/?#]*@")
_PLACE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^/?#]")
_NAMED_PLACES = ("s3", "gs", "gcs", "abfs", "abfss")


def scheme_of(root: str) -> str | None:
    """The kind of file system that a URI names, in lower case; None for a path."""
    found = _SCHEME.match(root)
    return found[1].lower() if found else None


def with_scheme(text: str) -> bool:
    """Whether a text begins like a URI, with any scheme."""
    return "://" in text or scheme_of(text) is not None


def is_local(root: str) -> bool:
    """Whether a root lies in the file system of the host."""
    return scheme_of(root) in (None, "file")


def problem_with(root: str) -> str | None:
    """Why a root cannot be used, and what to do; None if the root can be used."""
    scheme = scheme_of(root)
    if not root.strip() or "\0" in root:
        return f"{root!r} is not a directory; give the path of a folder, or its URI"
    if scheme is None:
        return None
    if scheme not in SCHEMES:
        return (
            f"no file system is known by {scheme!r}, as in {shown(root)}; use a path, or a URI of {', '.join(SCHEMES)}"
        )
    if _SECRET.match(root):
        # A root is written into logs, pointers and Spark's job descriptions.
        return f"{shown(root)} was given with a password in it; give credentials by the environment, not in the URI"
    if scheme in _NAMED_PLACES and not _PLACE.match(root):
        return f"{shown(root)} names no bucket; write {scheme}://bucket/folder"
    return None


def shown(root: str) -> str:
    """A root in a text for people: without options, and without a password if the root has a password."""
    if is_local(root):
        return root
    return re.sub(r"://[^/?#@]*:[^/?#]*@", "://", root.partition("?")[0])


def below(root: str, name: str) -> str:
    """The place `name` below a root, as a root of its own. `name` may have several parts."""
    if scheme_of(root) is None:
        return f"{root.rstrip('/')}/{name}"
    # '%' begins an encoded character in a URI, and is an ordinary character in a name.
    path, mark, options = root.partition("?")
    return f"{path.rstrip('/')}/{name.replace('%', '%25')}{mark}{options}"


def split(location: str) -> tuple[str, str]:
    """The root that a location lies directly below, and the location's name there: the reverse of `below`."""
    if scheme_of(location) is None:
        parent, _, name = location.rstrip("/").rpartition("/")
        return parent or "/", name
    path, mark, options = location.partition("?")
    parent, _, name = path.rstrip("/").rpartition("/")
    return f"{parent}{mark}{options}", name.replace("%25", "%")


def inside(root: str, place: str) -> str | None:
    """The name for which `below(root, name)` is `place`; None if the place does not lie below the root. Options of URIs
    are ignored."""
    start, whole = (text if scheme_of(text) is None else text.partition("?")[0] for text in (root, place))
    start = f"{start.rstrip('/')}/"
    if not whole.startswith(start) or len(whole) == len(start):
        return None
    return whole[len(start) :] if scheme_of(place) is None else whole[len(start) :].replace("%25", "%")
