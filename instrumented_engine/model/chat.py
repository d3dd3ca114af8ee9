"""Chat messages into one prompt."""

from collections.abc import Sequence

START = "<|im_start|>"
END = "<|im_end|>"


def chatml_prompt(messages: Sequence[tuple[str, str]], default_system: str | None = None) -> str:
    """Write ``(role, content)`` messages in ChatML and open the assistant's answer.

    ``default_system`` is put first if there are messages and the first is not the system's. Contents are not
    escaped, as in the templates that models ship: a content with ChatML markers in it reads as further messages.
    """
    turns = list(messages)
    if turns and default_system is not None and turns[0][0] != "system":
        turns.insert(0, ("system", default_system))
    return "".join(f"{START}{role}\n{content}{END}\n" for role, content in turns) + f"{START}assistant\n"
