"""Calls of functions, as the served model makes them: shown in its prompt, read from its answers.

Which notation the model writes is said by the operator or found in its chat template. A template
that knows no tools is helped out (``tool_prompt``), and then the notation is the Hermes one.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.errors import UnsupportedParameter
from gateway.inference.call_reader import CallReader
from gateway.inference.messages import Message
from gateway.inference.rendering import Rendering
from gateway.inference.structure import Structure
from gateway.inference.template import ChatTemplate
from gateway.inference.tool_prompt import told
from gateway.inference.tool_style import AUTO, STYLES, ToolStyle, detected
from gateway.inference.tools import Toolbox


@dataclass(frozen=True, slots=True)
class Calling:
    """What one request's answers may call."""

    box: Toolbox
    style: ToolStyle

    @property
    def unheld(self) -> tuple[str, ...]:
        """What is asked of calls and not enforced, with this notation."""
        return self.style.unheld(self.box)

    def reader(self) -> CallReader:
        return self.style.reader(self.box, new_call_id)


class CallSupport:
    """Of one model. Immutable."""

    def __init__(self, template: ChatTemplate | None, style: str = AUTO) -> None:
        """``style``: one of ``STYLES``, or AUTO."""
        self._tells = template is not None and not template.knows_tools
        if style != AUTO:
            self._style: ToolStyle | None = STYLES[style]
        elif self._tells:
            self._style = STYLES["hermes"]
        else:
            self._style = detected(template.source) if template else None

    def calling(self, box: Toolbox | None) -> Calling | None:
        """Raises UnsupportedParameter."""
        if box is None:
            return None
        if self._style is None:
            raise UnsupportedParameter(
                "tools: this server does not know how the model writes calls; its operator can"
                " say so with --tool-call-parser.",
                param="tools",
            )
        return Calling(box, self._style)

    def structure(self, calling: Calling | None, text: Structure | None) -> Structure | None:
        """What an answer must match; ``text``: what the client says it must."""
        return text if calling is None else calling.style.structure(calling.box, text)

    def prompt(
        self, messages: Sequence[Message], how: Rendering, calling: Calling | None
    ) -> tuple[Sequence[Message], Rendering]:
        """Messages and rendering that show the tools to this model."""
        shown = calling.box.shown if calling else ()
        if self._tells:
            return told(messages, shown), how
        return messages, replace(how, tools=list(shown)) if shown else how


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
