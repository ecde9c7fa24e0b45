"""What the KV of a prompt is computed from, as far as two engines of one base can differ."""

from array import array
from hashlib import blake2b

from engine.protocol import Submit

KEY_BYTES = 32


def key_of(submit: Submit) -> bytes:
    """Equal only for the same tokens and images, the same version of the same adapter, active from
    the same place, and the same tenant."""
    adapter = submit.adapter
    facts = [
        submit.tenant.encode(),
        array("q", submit.tokens).tobytes(),
        adapter.digest.encode() if adapter else b"",
        array("q", adapter.invocation if adapter else ()).tobytes(),
        *(array("q", [image.start]).tobytes() + image.digest for image in submit.images),
    ]
    found = blake2b(digest_size=KEY_BYTES)
    for fact in facts:
        found.update(len(fact).to_bytes(8, "little"))
        found.update(fact)
    return found.digest()
