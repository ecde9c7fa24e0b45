"""How things stand in an engine just now, for its metrics: who runs, waits and holds what."""

from collections import Counter
from collections.abc import Iterable

from engine.pages import Kind, Owner
from engine.residency import P
from engine.scheduler import Scheduler
from engine.seating import Seating
from engine.sequence import Sequence
from engine.share_metrics import AdapterStanding, Standing, TenantStanding
from engine.vllm_metrics import AdaptersInfo


def standing(scheduler: Scheduler[P], seating: Seating[P], adapters: Iterable[str]) -> Standing:
    """``adapters``: the digests that are to be told about."""
    running = Counter(sequence.request.submit.tenant for sequence in scheduler.runs)
    waiting = Counter(sequence.request.submit.tenant for sequence in scheduler.waits)
    tenants = {
        tenant: TenantStanding(
            running=running[tenant],
            waiting=waiting[tenant],
            pages=seating.pool.share_of(tenant),
            service=scheduler.fairness[tenant],
        )
        for tenant in (running | waiting)
    }
    used = Counter(map(_digest, scheduler.runs))
    found = {
        digest: AdapterStanding(
            tier=seating.residency.tier(digest),
            pages=len(seating.pool.held(Owner(Kind.ADAPTER, digest))),
            running=used[digest],
        )
        for digest in adapters
    }
    return Standing(tenants, found)


def name_adapters(scheduler: Scheduler[P], info: AdaptersInfo) -> None:
    info.set(_digests(scheduler.runs), _digests(scheduler.waits))


def _digests(sequences: Iterable[Sequence]) -> list[str]:
    return [digest for digest in dict.fromkeys(map(_digest, sequences)) if digest]


def _digest(sequence: Sequence) -> str | None:
    return sequence.request.digest
