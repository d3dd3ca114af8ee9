"""Command-line flags and ``ENGINESCOPE_*`` variables for the long-running processes, from one frozen dataclass.

Each field is a flag (``max_num_seqs`` -> ``--max-num-seqs``) and a variable (``ENGINESCOPE_MAX_NUM_SEQS``, or
``ENGINESCOPE_SIDECAR_LISTEN`` for the sidecar); the flag wins. argparse keeps these processes lean: they must not load
a terminal library.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar, get_type_hints

T = TypeVar("T")


class SettingsError(ValueError):
    """A flag or variable with a value that cannot be used; the message is one sentence."""


def setting(help_text: str, default: Any = dataclasses.MISSING, metavar: str | None = None) -> Any:
    """A dataclass field with its help text."""
    return dataclasses.field(default=default, metadata={"help": help_text, "metavar": metavar})


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def parse(
    cls: type[T],
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    prefix: str = "ENGINESCOPE_",
) -> T:
    """Build and validate the settings; ``cls.__post_init__`` may raise ValueError with one sentence.

    Variables begin with ``prefix``, so that two programs with a setting of the same name can share an environment.

    Raises:
        SettingsError: an unknown flag, a value of the wrong type, or one that validation refused.
    """
    parser = _Parser(prog=program, description=(cls.__doc__ or "").partition("\n")[0], allow_abbrev=False)
    hints = get_type_hints(cls)
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]
        _add_flag(parser, item, hints[item.name])
    flags = vars(parser.parse_args(arguments))
    given: dict[str, Any] = {}
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]
        flag, variable = _flag(item), f"{prefix}{item.name.upper()}"
        if flags[item.name] is not None:
            given[item.name] = _convert(flag, hints[item.name], flags[item.name])
        elif environment.get(variable):
            given[item.name] = _convert(variable, hints[item.name], environment[variable])
    try:
        return cls(**given)
    except TypeError as error:
        missing = [item.name for item in dataclasses.fields(cls) if _is_required(item) and item.name not in given]  # type: ignore[arg-type]
        raise SettingsError(f"missing --{', --'.join(missing).replace('_', '-')}" if missing else str(error)) from error
    except ValueError as error:
        raise SettingsError(str(error)) from error


def parse_or_exit(cls: type[T], program: str, prefix: str = "ENGINESCOPE_") -> T:
    """``parse`` for a ``main``: bad input is one sentence on stderr and exit status 2."""
    try:
        return parse(cls, program, sys.argv[1:], prefix=prefix)
    except SettingsError as error:
        sys.exit(_complain(program, str(error)))


def _complain(program: str, sentence: str) -> int:
    print(f"{program}: {sentence}", file=sys.stderr)
    return 2


def _is_required(item: dataclasses.Field[Any]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _add_flag(parser: _Parser, item: dataclasses.Field[Any], kind: Any) -> None:
    default = "" if _is_required(item) or item.default in (None, "", ()) else f" (default: {item.default})"
    help_text = (item.metadata.get("help", "") + default).replace("%", "%%")
    if kind is bool:
        parser.add_argument(_flag(item), action=argparse.BooleanOptionalAction, default=None, help=help_text)
    else:
        parser.add_argument(_flag(item), default=None, help=help_text, metavar=item.metadata.get("metavar"))


def _flag(item: dataclasses.Field[Any]) -> str:
    return f"--{item.name.replace('_', '-')}"


def _convert(name: str, kind: Any, text: Any) -> Any:
    if isinstance(text, bool):
        return text
    if kind is bool:
        if text.lower() not in ("0", "1", "true", "false", "yes", "no"):
            raise SettingsError(f"{name} takes true or false, not {text!r}")
        return text.lower() in ("1", "true", "yes")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            word = "a whole number" if kind is int else "a number"
            raise SettingsError(f"{name} takes {word}, not {text!r}") from None
    return text
