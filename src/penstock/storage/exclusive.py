"""Objects that only one of several writers creates: the service refuses the upload of a writer if the name is taken.

`pyarrow` has no such upload, so the request is made by `obstore` (the extra `object-storage`): `If-None-Match: *` for
S3, a generation of 0 for Google Cloud Storage. All other requests are made by `pyarrow`, with the same names and
credentials.

A service that does not know the condition takes every upload. So no object may be created in this way before
`storage.remote` has seen that the service refuses an upload to an object that exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from penstock.core.recovery import roots

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Credential

Create = Callable[[str, bytes], bool]
"""Uploads an object by its key in the bucket, unless the object exists; False if the service has refused the upload. A
request that was sent twice, because its answer was lost, may be refused because of its own first upload. Raises
`OSError`, and then it is not known whether the object was created; or `Unsupported`."""

EXTRA = "object-storage"
_TIMEOUT = timedelta(seconds=20)
_RETRIES = 3
_EXPIRED = datetime(1970, 1, 1, tzinfo=UTC)
"""An expiry in the past, so that obstore asks for the credentials at every upload: botocore keeps the credentials, and
renews them in time."""
# These options do not concern single uploads.
_NEUTRAL = ("allow_bucket_creation", "allow_bucket_deletion", "allow_delayed_open", "background_writes")
_S3_OPTIONS = ("region", "endpoint_override", "scheme", *_NEUTRAL)
_GCS_OPTIONS = ("project_id", "retry_limit_seconds")
# The answers of a service that does not know the header. Neither a passing failure nor missing rights give these
# answers.
_UNKNOWN_TO_SERVICE = re.compile(r"status code: (405|501)\b|<Code>NotImplemented")


class Unsupported(Exception):
    """The service does not take uploads with a condition."""


def open_exclusive(root: str, files: Any, bucket: str) -> Create | str:
    """The function that creates objects in the bucket of `root`; or, if no such function can be made, a text that says
    why, to be put behind a colon. `files` is pyarrow's file system for `root`. No request is sent yet."""
    scheme = roots.scheme_of(root)
    options = dict(parse_qsl(root.partition("?")[2], keep_blank_values=True))
    if scheme not in roots.OBJECT_STORES:
        return f"Penstock knows no way to do that by {scheme}:"
    known = _S3_OPTIONS if scheme == "s3" else _GCS_OPTIONS
    if strange := sorted(set(options) - set(known)):
        return f"Penstock cannot do that with {', '.join(strange)} in the URI"
    try:
        from obstore import put
        from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError
    except ImportError:
        return f"the extra {EXTRA} is not installed"
    store = _s3(files, bucket, options) if scheme == "s3" else _gcs(bucket)

    def create(key: str, data: bytes) -> bool:
        try:
            put(store, key, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        except NotSupportedError as error:
            raise Unsupported(_facts(error)) from error
        except (BaseError, FileNotFoundError, ValueError) as error:
            facts = _facts(error)
            raise (Unsupported if _UNKNOWN_TO_SERVICE.search(facts) else OSError)(facts) from error
        return True

    return create


def _s3(files: Any, bucket: str, options: dict[str, str]) -> Any:
    from botocore.session import get_session
    from obstore.store import S3Store

    found = get_session().get_credentials()

    def credentials() -> S3Credential:
        now = found.get_frozen_credentials()
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": _EXPIRED,
        }

    endpoint = options.get("endpoint_override")
    scheme = options.get("scheme", "https")
    where: dict[str, Any] = {} if endpoint is None else {"endpoint": f"{scheme}://{endpoint}"}
    return S3Store(
        bucket,
        # If the URI does not name the region, pyarrow has found the region out.
        region=files.region,
        conditional_put="etag",
        # Without credentials, pyarrow does not sign requests either.
        credential_provider=None if found is None else credentials,
        skip_signature=found is None,
        client_options=_client(allow_http=scheme == "http"),
        retry_config=_retries(),
        **where,
    )


def _gcs(bucket: str) -> Any:
    from obstore.store import GCSStore

    # The endpoint is Google's, unless the file with the credentials names another endpoint.
    return GCSStore(bucket, client_options=_client(allow_http=True), retry_config=_retries())


def _client(*, allow_http: bool) -> ClientConfig:
    return {"allow_http": allow_http, "timeout": _TIMEOUT}


def _retries() -> RetryConfig:
    return {"max_retries": _RETRIES, "retry_timeout": _TIMEOUT}


def _facts(error: Exception) -> str:
    """The error text in one line, without the debugging text that obstore adds."""
    return " ".join(str(error).partition("\n\nDebug source")[0].split())
