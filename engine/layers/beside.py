"""Work that runs beside a pass's own stream until it is joined; in a captured graph, a branch."""

import torch


class Beside:
    """``with`` it, launches go to the second stream; without one they stay where they are."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._stream = stream
        self._entered: torch.cuda.StreamContext | None = None

    def __enter__(self) -> None:
        """What is launched here sees all that was launched before."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
            self._entered = torch.cuda.stream(self._stream)
            self._entered.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: object) -> None:
        if self._entered is not None:
            self._entered.__exit__(*raised)
            self._entered = None

    def join(self) -> None:
        """What is launched after this sees all that was launched here."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
