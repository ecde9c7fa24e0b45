"""What a spend alert says, and its signature, as Standard Webhooks have it.

    webhook-signature: v1,base64(HMAC-SHA256(secret, "id.timestamp.body"))

OpenAI's client checks it: ``client.webhooks.verify_signature(body, headers, secret=…)``. The id is
the delivery's, the same at each attempt: who has seen it has seen the alert.
"""

import base64
import binascii
import hmac
import os
import secrets
from pathlib import Path

import msgspec

from gateway.config import ConfigError, Secret
from gateway.limits.models import AlertDelivery, SpendAlert

MARK = "whsec_"
SECRET_BYTES = 32
NANO_PER_CENT = 10_000_000
TYPE = "spend_alert.triggered"


def body_of(alert: SpendAlert, delivery: str, *, period: str, spent: int, at: int) -> str:
    """``spent``: nano-dollars by now; ``at``: unix seconds."""
    return msgspec.json.encode(
        {
            "id": delivery,
            "object": "event",
            "type": TYPE,
            "created_at": at,
            "data": {
                "alert_id": alert.id,
                "organization_id": alert.organisation_id,
                "project_id": alert.project_id,
                "period": period,
                "currency": "USD",
                "threshold_amount": alert.threshold_nano // NANO_PER_CENT,
                "threshold_nano_usd": alert.threshold_nano,
                "spent_nano_usd": spent,
                "recipients": alert.recipients.split("\n"),
                "subject_prefix": alert.subject_prefix,
            },
        }
    ).decode()


def headers_of(delivery: AlertDelivery, secret: bytes, at: int) -> dict[str, str]:
    signed = f"{delivery.id}.{at}.{delivery.body}".encode()
    signature = base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()
    return {
        "content-type": "application/json",
        "webhook-id": delivery.id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{signature}",
    }


def load_secret(given: Secret | None, file: Path) -> bytes:
    """The given one, or the file's, which is made, mode 0600, where there is none."""
    if given is not None:
        return _parsed(given.reveal(), "alert_webhook_secret")
    if not file.exists():
        text = MARK + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text + "\n")
        draft.replace(file)
    return _parsed(file.read_text("ascii").strip(), str(file))


def _parsed(text: str, source: str) -> bytes:
    try:
        secret = base64.b64decode(text.removeprefix(MARK), validate=True)
    except binascii.Error as error:
        raise ConfigError(f"{source}: not {MARK} and base64") from error
    if not text.startswith(MARK) or len(secret) < SECRET_BYTES // 2:
        raise ConfigError(f"{source}: write {MARK} and base64 of at least 16 bytes")
    return secret
