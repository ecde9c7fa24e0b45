"""What loading a model yields: the parts `python -m engine` composes into a serving engine.

Torch-free, so that the composition and its tests need no GPU library.
`engine.composition.build_runner(config: EngineConfig) -> Built[LaidOut]` makes one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from engine.handoff.news import PageTransfer
from engine.matcher import Grammars
from engine.protocol import AskReference, BaseInfo, Verdict
from engine.residency import AdapterMemory, HostCache, P
from engine.speculation.proposer import Proposer
from engine.step import Runner
from engine.swap import PageSwap


@dataclass(frozen=True, slots=True, kw_only=True)
class Built(Generic[P]):
    runner: Runner
    memory: AdapterMemory[P]
    base: BaseInfo
    num_pages: int  # pages of the pool, KV and adapters together
    max_model_len: int  # tokens: the configured limit, or the model's own when none is set
    eos: frozenset[int]  # tokens that end a sequence, from the model's generation config
    adapters: HostCache[P] | None  # None: no adapter store is configured
    compiled: Callable[[], int] = lambda: 0  # kernels compiled since it was built
    ahead: bool = False  # launch returns before the pass is computed: plan the next meanwhile
    swap: PageSwap | None = None  # None: whoever yields is computed again
    proposer: Proposer | None = None  # None: nobody guesses what comes next
    transfer: PageTransfer | None = None  # None: no pages come from other engines, or go there
    grammars: Grammars | None = None  # None: requests with a grammar are refused
    max_step_s: float | None = None  # what a pass with decodes should take when none is configured
    pass_sizes: Sequence[int] = ()  # tokens that passes with prompts are padded to, ascending
    close: Callable[[], None] = lambda: None  # ends what was started to compute
    reference: Callable[[AskReference], Verdict] | None = None  # thread-safe; takes its time
