"""Every way a request can fail, as the caller sees it.

A leaf class is one documented outcome: a status, a stable code, OpenAI's type, and whether a
retry can help. Services raise these; one handler renders them. Nothing else in the gateway
chooses a status code. Messages never carry a key, a prompt or another tenant's name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Bound:
    """Whose limit a request was refused by, and on what."""

    level: str
    subject: str
    words: str  # "requests per minute"


class GatewayError(Exception):
    """Root of the tree. ``param`` is the path of the field at fault, as the client wrote it."""

    status: ClassVar[HTTPStatus] = HTTPStatus.INTERNAL_SERVER_ERROR
    code: ClassVar[str | None] = "internal_error"
    kind: ClassVar[str] = "server_error"
    retryable: ClassVar[bool | None] = None  # x-should-retry; None leaves it to the client

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
        bound: Bound | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.detail_code = code or self.code
        self.retry_after = retry_after  # seconds
        self.extra_headers = dict(headers or {})
        self.bound = bound

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.detail_code,
            }
        }

    def headers(self) -> dict[str, str]:
        headers = dict(self.extra_headers)
        if self.retry_after is not None:
            milliseconds = max(1, round(self.retry_after * 1000))
            headers["retry-after-ms"] = str(milliseconds)
            headers["retry-after"] = str(-(-milliseconds // 1000))
        if self.retryable is not None:
            headers["x-should-retry"] = "true" if self.retryable else "false"
        return headers


class InvalidRequest(GatewayError):
    status, kind = HTTPStatus.BAD_REQUEST, "invalid_request_error"
    code: ClassVar[str | None] = "invalid_value"


class InvalidJson(InvalidRequest):
    code = None


class InvalidType(InvalidRequest):
    code = "invalid_type"


class MissingParameter(InvalidRequest):
    code = "missing_required_parameter"


class UnsupportedParameter(InvalidRequest):
    code = "unsupported_parameter"


class UnknownParameter(InvalidRequest):
    """For a project that will have nothing ignored."""

    code = "unknown_parameter"


class ContextTooLong(InvalidRequest):
    code = "context_length_exceeded"


class Unauthenticated(GatewayError):
    """Missing, malformed, unknown, expired or revoked: one and the same answer."""

    status, kind = HTTPStatus.UNAUTHORIZED, "invalid_request_error"
    code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__("Incorrect API key provided.", headers={"www-authenticate": "Bearer"})


class SignInRefused(GatewayError):
    """Nobody of this name, or another password: one and the same answer."""

    status, kind = HTTPStatus.UNAUTHORIZED, "invalid_request_error"
    code = "sign_in_refused"

    def __init__(self, message: str = "This address and password do not belong together.") -> None:
        super().__init__(message)


class SignInLimited(GatewayError):
    status, kind = HTTPStatus.TOO_MANY_REQUESTS, "rate_limit_error"
    code = "too_many_sign_ins"

    def __init__(self, wait_s: float) -> None:
        wait = max(1, round(wait_s))
        super().__init__(f"Too many tries. Try again in {wait} seconds.", retry_after=wait)


class PermissionDenied(GatewayError):
    status, kind = HTTPStatus.FORBIDDEN, "permission_error"
    code = "permission_denied"


class EndpointDenied(PermissionDenied):
    """The key is good, and for other paths than this one."""


class RouteNotFound(GatewayError):
    status, kind = HTTPStatus.NOT_FOUND, "invalid_request_error"
    code = "not_found"


class ResourceNotFound(GatewayError):
    """A tenant, key or adapter that an operator named."""

    status, kind = HTTPStatus.NOT_FOUND, "invalid_request_error"
    code = "not_found"


class MethodNotAllowed(GatewayError):
    status, kind = HTTPStatus.METHOD_NOT_ALLOWED, "invalid_request_error"
    code = "method_not_allowed"


class ModelNotFound(GatewayError):
    """Also raised for another tenant's adapter: existence is not disclosed."""

    status, kind = HTTPStatus.NOT_FOUND, "invalid_request_error"
    code = "model_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The model {name[:200]!r} does not exist or you do not have access to it.",
            param="model",
        )


class Conflict(GatewayError):
    status, kind = HTTPStatus.CONFLICT, "invalid_request_error"
    code = "conflict"


class IdempotencyKeyReused(GatewayError):
    """The key stands for another request."""

    status, kind = HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_request_error"
    code = "idempotency_key_reused"


class IdempotencyKeyBusy(Conflict):
    """The request that has this key is not answered yet."""

    code = "idempotency_key_in_use"
    retryable = True


class IdempotencyAnswerGone(Conflict):
    """It was answered, and the answer is not kept; answering again would be paid again."""

    code = "idempotency_answer_not_kept"
    retryable = False


class UnpricedUsage(Conflict):
    """A bill would leave out requests that have no price."""

    code = "unpriced_usage"
    retryable = False


class BooksDiffer(Conflict):
    """What was exported is not what the ledger says: a fault of ours. Nothing is written."""

    code = "books_differ"
    retryable = False


class AdapterLoaded(InvalidRequest):
    """vLLM's route was asked to load a name that is loaded, and not to replace it."""

    code = "adapter_loaded"


class AdapterRefused(GatewayError):
    """The files are no adapter for this base. ``problems`` lists every finding."""

    status, kind = HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_request_error"
    code = "adapter_invalid"

    def __init__(self, message: str, problems: Sequence[str]) -> None:
        super().__init__(message)
        self.problems = list(problems)

    def body(self) -> dict[str, Any]:
        found = super().body()
        return {"error": {**found["error"], "problems": self.problems}}


class OtherBase(AdapterRefused):
    """Trained on another base of the same shape; ``force`` accepts it all the same."""

    status, code = HTTPStatus.CONFLICT, "base_mismatch"
    retryable = False


class AdapterQuotaExceeded(GatewayError):
    status, kind = HTTPStatus.FORBIDDEN, "insufficient_quota"
    code = "adapter_quota_exceeded"
    retryable = False


class FileQuotaExceeded(GatewayError):
    """A project keeps as many files, or bytes of them, as it may."""

    status, kind = HTTPStatus.FORBIDDEN, "insufficient_quota"
    code = "file_quota_exceeded"
    retryable = False


class BatchQueueFull(GatewayError):
    """As many batches of a project are open as may be."""

    status, kind = HTTPStatus.TOO_MANY_REQUESTS, "requests"
    code = "batch_queue_full"
    retryable = False


class HeadTooLarge(GatewayError):
    """Of a request, before anything is known of who sends it."""

    status, kind = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "invalid_request_error"
    code = "headers_too_large"


class BodyTooLarge(GatewayError):
    status, kind = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "invalid_request_error"
    code = "request_too_large"


class UnsupportedMediaType(GatewayError):
    status, kind = HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "invalid_request_error"
    code = "unsupported_media_type"


class RequestsLimited(GatewayError):
    status, kind = HTTPStatus.TOO_MANY_REQUESTS, "requests"
    code = "rate_limit_exceeded"


class TokensLimited(GatewayError):
    status, kind = HTTPStatus.TOO_MANY_REQUESTS, "tokens"
    code = "rate_limit_exceeded"


class NeverWithinTokenLimit(TokensLimited):
    """One request larger than the whole limit: waiting cannot help."""

    retryable = False


class DayLimited(RequestsLimited):
    """The limit of a day is reached: waiting helps, but not soon."""

    retryable = False


class ConcurrencyLimited(RequestsLimited):
    """As many requests as may run at once do."""


class BudgetExhausted(GatewayError):
    """No money is left until the period ends, or until somebody raises the limit."""

    status, kind = HTTPStatus.TOO_MANY_REQUESTS, "insufficient_quota"
    code = "insufficient_quota"
    retryable = False


class BudgetReserved(BudgetExhausted):
    """What is left is reserved by requests under way, and some of it may come back."""

    retryable = True


class ModelUnpriced(GatewayError):
    """A budget cannot be kept where the price is not known: a fault of the operator."""

    status, kind = HTTPStatus.FORBIDDEN, "permission_error"
    code = "model_unpriced"


class Unavailable(GatewayError):
    status, kind = HTTPStatus.SERVICE_UNAVAILABLE, "server_error"
    code = "server_is_overloaded"


class NoEngine(Unavailable):
    code = "no_engine"


class GatewayUnreachable(Unavailable):
    """A gateway that an operator named does not answer."""

    code = "gateway_unreachable"


class BaseNotServed(Unavailable):
    """The adapter exists; no gateway like this one serves the base it was published for."""

    code = "base_not_served"
    retryable = False

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The base model that {model[:80]!r} was published for is not served here.",
            param="model",
        )


class AdapterFailed(Unavailable):
    """The adapter exists but the engine cannot load it."""

    code = "adapter_unavailable"
    retryable = False


class AdapterRetired(GatewayError):
    """The adapter was retired, and the time its running requests had left is over."""

    status, kind = HTTPStatus.GONE, "invalid_request_error"
    code = "adapter_retired"
    retryable = False

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The adapter {name[:200]!r} was retired while it worked on this request.",
            param="model",
        )


class QuotaBackendUnavailable(Unavailable):
    code = "quota_backend_unavailable"


class IdempotencyUnavailable(Unavailable):
    """Nobody can say whether a key was used before."""

    code = "idempotency_unavailable"


class UsageLogUnavailable(Unavailable):
    """Usage cannot be recorded, so nothing is served: what runs unrecorded runs for nothing."""

    code = "usage_log_unavailable"


class EngineLost(Unavailable):
    """The engine died mid-request; tokens already received are billed, the rest is not."""

    code = "engine_lost"


class EngineFailed(GatewayError):
    """This request alone failed inside the engine; tokens delivered until then are billed."""

    code = "engine_failed"


class DeadlineExceeded(GatewayError):
    status, kind = HTTPStatus.GATEWAY_TIMEOUT, "server_error"
    code = "deadline_exceeded"
