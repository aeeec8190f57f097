"""Discovery: which feeds a page offers, which hubs a resource names, and whether a body is itself a feed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from yarl import URL

_LINK = re.compile(r"<([^<>]*)>([^<]*)")
_REL = re.compile(r";\s*rel\s*=\s*(?:\"([^\"]*)\"|([^\s;,\"]+))", re.IGNORECASE)


def read_link_headers(values: Iterable[str], url: str) -> list[tuple[str, str]]:
    """Return the links of Link headers (RFC 8288) as pairs of a relation and an absolute URL, in their order."""
    found = []
    for value in values:
        for target, parameters in _LINK.findall(value):
            absolute = joined(url, target)
            if absolute and (rel := _REL.search(parameters)):
                found += [(word, absolute) for word in (rel[1] or rel[2]).lower().split()]
    return found


def joined(base: str, target: str) -> str:
    """Return the absolute http or https URL that `target` means on `base`, and an empty text where it means none."""
    try:
        url = URL(base).join(URL(target.strip()))
    except ValueError:
        return ""
    return str(url) if url.scheme in ("http", "https") and url.host else ""
