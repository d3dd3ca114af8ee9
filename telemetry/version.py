"""The release of this installation, the same for every process."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("enginescope")
