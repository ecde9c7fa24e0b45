"""What a grammar may take, the same for the gateway that checks it and the engine that follows it.

A grammar is a text in llguidance's notation. Sizes and work are bounded, so that one request can
hold up neither: the limits count symbols, states and steps, not seconds, and are generous for
what people write. Torch-free.
"""

from llguidance import LLParserLimits

MOST_CHARS = 1 << 19


def limits() -> LLParserLimits:
    return LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=2_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=30_000,  # 1 to 2 kB each
        max_grammar_size=500_000,
        verbose_errors=False,  # messages reach logs and clients
    )
