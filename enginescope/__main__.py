"""``python -m enginescope``."""

from enginescope.cli import app

app()
