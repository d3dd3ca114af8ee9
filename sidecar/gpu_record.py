"""``python -m sidecar.gpu_record FILE``: what this machine's NVML answers to the sidecar's calls, once, as text.

The tests replay such a file through a library built with nvml.h's layouts (tests/fixtures/nvml), so that a machine
whose GPUs are read wrongly becomes a test. A line is: function, device index or ``-``, return code (or ``missing``
where the library has no such function), and the numbers that the call filled in. Process ids are in it; nothing else
of the machine but the driver's version is.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from sidecar.kernel.nvml import LIBRARY, Nvml, NvmlError

_HANDLE: Final = "nvmlDeviceGetHandleByIndex_v2"
_END: Final = "nvmlShutdown"
_VERSION_BYTES: Final = 80  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
_USAGE: Final = "takes one argument, the file to write"


class RecordingLibrary:
    """Stands between ``Nvml`` and the library, and writes down each call's answer."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._devices: dict[int | None, str] = {}
        """Handle -> index."""
        self.lines: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        """The function, wrapped.

        Raises:
            AttributeError: the library has none, which is written down when it is called.
        """
        if name == _END:
            return self._library.nvmlShutdown  # type: ignore[no-any-return]
        function = getattr(self._library, name, None)
        return lambda *arguments: self._call(name, function, arguments)

    def _call(self, name: str, function: Callable[..., int] | None, arguments: tuple[Any, ...]) -> int:
        device = self._device(name, arguments)
        if function is None:
            self.lines.append(f"{name} {device} missing")
            raise AttributeError(name)
        code = function(*arguments)
        filled: list[int] = []
        if code == 0 and name == _HANDLE:
            self._devices[_pointed(arguments[1]).value] = device
        elif code == 0:
            filled = _filled(arguments)
        self.lines.append(" ".join(map(str, (name, device, code, *filled))))
        return code

    def _device(self, name: str, arguments: tuple[Any, ...]) -> str:
        if name == _HANDLE:
            return str(arguments[0].value)
        handle = arguments[0] if arguments else None
        return self._devices[handle.value] if isinstance(handle, ctypes.c_void_p) else "-"


def _pointed(argument: Any) -> Any:
    """What ``byref`` was made of."""
    return argument._obj


def _filled(arguments: tuple[Any, ...]) -> list[int]:
    """The numbers behind the pointers of a call. Before an array comes how many of its elements count."""
    found: list[int] = []
    for argument in arguments:
        if not isinstance(argument, ctypes._SimpleCData):
            pointed = _pointed(argument)
            elements = pointed[: found[-1]] if isinstance(pointed, ctypes.Array) else [pointed]
            found += (number for element in elements for number in _numbers(element))
    return found


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, ctypes.Structure):
        yield from (getattr(value, name) for name, *_ in value._fields_)
    else:
        yield value.value


def record(library: Any) -> list[str]:
    """The lines of one reading of all GPUs; what failed on the way is among them."""
    recording = RecordingLibrary(library)
    try:
        nvml = Nvml(recording)
        nvml.read()
        nvml.close()
    except NvmlError:
        return recording.lines
    return recording.lines


def _driver(library: Any) -> str:
    version = ctypes.create_string_buffer(_VERSION_BYTES)
    try:
        library.nvmlInit_v2()
        library.nvmlSystemGetDriverVersion(version, ctypes.c_uint(_VERSION_BYTES))
        library.nvmlShutdown()
    except AttributeError:
        return "unknown"
    return version.value.decode(errors="replace") or "unknown"


def main(arguments: list[str]) -> int:
    """Record; the exit status, 1 without GPUs and 2 for bad input."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(f"sidecar.gpu_record: {_USAGE}", file=sys.stderr)
        return 2
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        print(f"sidecar.gpu_record: {LIBRARY} cannot be loaded, so there are no GPUs to record", file=sys.stderr)
        return 1
    head = f"# Recorded {time.strftime('%Y-%m-%d')} by sidecar.gpu_record with driver {_driver(library)}."
    try:
        Path(arguments[0]).write_text("\n".join([head, *record(library)]) + "\n")
    except OSError as error:
        print(f"sidecar.gpu_record: cannot write {arguments[0]}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
