"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes a text on up to the first stop string in it.

    What may be the beginning of a stop string is held back until more is known. The string that ends first decides,
    of two that end together the one that begins first; so the result does not depend on how the text was cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False
        """A stop string was seen; nothing passes any more."""

    def push(self, text: str) -> str:
        """The part of the text so far that is now certain and was not passed on yet."""
        if not self._stops:
            return text
        if self.stopped:
            return ""
        text = self._held + text
        cut = self._first_stop(text)
        self.stopped = cut is not None
        certain = len(text) - self._doubtful(text) if cut is None else cut
        self._held = "" if self.stopped else text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """What was held back: the text ends here."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str) -> int | None:
        """Where the stop string begins that ends first."""
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _doubtful(self, text: str) -> int:
        """Length of the longest end of the text that some stop string begins with."""
        longest = min(max(map(len, self._stops)) - 1, len(text))
        return next((n for n in range(longest, 0, -1) if self._begins_stop(text[-n:])), 0)

    def _begins_stop(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._stops)
