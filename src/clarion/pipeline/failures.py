"""Finding Clarion's own typed error in what Spark says when a task, a source or a sink failed."""

from __future__ import annotations

import re

from clarion.model import errors
from clarion.model.errors import ClarionError

_TOLD = re.compile(r"^\s*(?:[\w.]*\.)?(?P<name>[A-Z]\w+): (?P<text>.*(?:\n(?!\s|\n|\w[\w.]*:).*)*)", re.MULTILINE)


def clarion_error_in(error: BaseException) -> ClarionError | None:
    """Give the typed error that a Python traceback inside Spark's message ends with; None where there is none."""
    found = None
    for match in _TOLD.finditer(str(error)):
        kind = getattr(errors, match["name"], None)
        if isinstance(kind, type) and issubclass(kind, ClarionError):
            found = kind(match["text"].strip())
    return found
