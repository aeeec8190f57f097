"""The docs: files that they name are there, and lines can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FILES = {
    path.relative_to(ROOT).as_posix()
    for room in ("src", "tests", "bench", "examples")
    for path in (ROOT / room).rglob("*")
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_line_over_200_characters(page: Path) -> None:
    long = [number for number, line in enumerate(page.read_text().splitlines(), 1) if len(line) > 200]
    assert not long


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_file_of_ours_that_a_page_names_is_there(page: Path) -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py)?)`", page.read_text()))
    ours = {name for name in named if name.endswith(".py") or f"src/clarion/{name.split('/')[0]}" in FILES}
    lost = [
        name
        for name in ours
        if not any(file == name.rstrip("/") or file.endswith(f"/{name.rstrip('/')}") for file in FILES)
    ]
    assert not lost
