"""The fields of a form, read with a cap."""

from urllib.parse import parse_qsl

from starlette.requests import Request

from gateway.errors import InvalidRequest
from gateway.http import ClientGone
from gateway.http import Request as RawRequest

MOST_BYTES = 1 << 16
MOST_FIELDS = 500


async def read_form(request: Request) -> dict[str, str]:
    """Of several fields with one name, the last. Raises InvalidRequest, BodyTooLarge."""
    raw = await read_body(request, MOST_BYTES)
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise InvalidRequest("The form cannot be read.") from error
    return dict(pairs)


async def read_body(request: Request, limit: int) -> bytes:
    """Raises InvalidRequest also where it does not arrive: nobody has to be known to send one."""
    try:
        return await RawRequest(request.scope, request.receive).body(limit)
    except ClientGone as error:
        raise InvalidRequest("The form did not arrive.") from error
