"""What a grammar may take, the same for the gateway that checks it and the engine that follows it.

A grammar is a text in llguidance's notation. Sizes and work are bounded, so that one request can
hold up neither: the limits count symbols, states and steps, not seconds (those are ``effort``'s),
and are generous for what people write. Compiling recurses through schemas and references as deep
as they go, so it happens in threads whose stacks hold the deepest that fits in a text of the
greatest size. Torch-free.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

from llguidance import LLParserLimits

MOST_CHARS = 1 << 19
STACK_BYTES = 256 << 20  # of address space; memory is taken as it is used


def limits() -> LLParserLimits:
    return LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=2_000_000,
        step_lexer_fuel=60_000,
        step_max_items=20_000,
        max_lexer_states=30_000,  # 1 to 2 kB each
        max_grammar_size=500_000,
        verbose_errors=False,  # messages reach logs and clients
    )


def compiling_threads(count: int) -> ThreadPoolExecutor:
    """A pool whose threads exist already: the size of a stack is said when a thread is made."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="grammar")
    all_there = threading.Barrier(count + 1)
    usual = threading.stack_size(STACK_BYTES)
    try:
        for _ in range(count):
            pool.submit(all_there.wait)
        all_there.wait()
    finally:
        threading.stack_size(usual)
    return pool
