"""The fields of a form, read with a cap."""

from urllib.parse import parse_qsl

from starlette.requests import Request

from gateway.errors import InvalidRequest

MOST_BYTES = 1 << 16
MOST_FIELDS = 500


async def read_form(request: Request) -> dict[str, str]:
    """Of several fields with one name, the last. Raises InvalidRequest."""
    raw = bytearray()
    async for piece in request.stream():
        raw += piece
        if len(raw) > MOST_BYTES:
            raise InvalidRequest(f"The form is larger than {MOST_BYTES} bytes.")
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise InvalidRequest("The form cannot be read.") from error
    return dict(pairs)
