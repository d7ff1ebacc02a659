"""What the object library says becomes one line of ours: wait, or do this. The texts are like the library's own."""

from __future__ import annotations

import pytest
from obstore.exceptions import BaseError, GenericError, PermissionDeniedError, UnauthenticatedError

from shoal.archive.objects import _translated
from shoal.archive.urls import find_place
from shoal.errors import ServerUnreachable, ShoalError, UsageError

TRIED = "Generic S3 error: Error performing PUT https://h/b/k?sig=hush in 1ms, after 2 retries, max_retries: 2"


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (
            GenericError(f"{TRIED} - HTTP error: error sending request\n\nDebug source:\nhush"),
            ServerUnreachable,
            "the archive in s3://b/x cannot be reached: HTTP error: error sending request",
        ),
        (
            GenericError(f"{TRIED} - Server returned non-2xx status code: 503 Slow Down"),
            ServerUnreachable,
            "the archive in s3://b/x cannot be reached: Server returned non-2xx status code: 503 Slow Down",
        ),
        (
            GenericError(f"{TRIED} - Server returned non-2xx status code: 429 Too Many Requests"),
            ServerUnreachable,
            "the archive in s3://b/x cannot be reached: Server returned non-2xx status code: 429 Too Many Requests",
        ),
        (
            GenericError(f"{TRIED} - Server returned non-2xx status code: 400 Bad Request: <Code>Malformed</Code>"),
            UsageError,
            "s3://b/x refuses, check its region and endpoint: Server returned non-2xx status code: 400 Bad Request: "
            "<Code>Malformed</Code>",
        ),
        (
            PermissionDeniedError("The operation lacked the necessary privileges: hush"),
            UsageError,
            "s3://b/x refuses these credentials: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ),
        (
            UnauthenticatedError("hush"),
            UsageError,
            "s3://b/x refuses these credentials: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ),
    ],
    ids=["away", "slow down", "too many", "malformed", "denied", "not known"],
)
def test_an_error_of_the_library_is_one_line_without_secrets(
    error: BaseError, kind: type[ShoalError], line: str
) -> None:
    with pytest.raises(kind) as caught, _translated(find_place("s3://b/x", create=True)):
        raise error
    assert str(caught.value) == line
    assert "hush" not in line
    assert caught.value.__suppress_context__
