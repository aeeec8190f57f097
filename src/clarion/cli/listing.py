"""Groups of commands that list when no command is named: `clarion topics` is `clarion topics list`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

_HELP = ("-h", "--help")
LIST = "list"


class ListsByDefault(TyperGroup):
    """Where options come first, or nothing at all, `list` is meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.means_list(args):
            args = [LIST, *args]
        return super().parse_args(ctx, args)

    def means_list(self, args: list[str]) -> bool:
        """Tell whether these arguments, which follow the group's name, are those of `list`."""
        return not args or (args[0].startswith("-") and args[0] not in _HELP)


class ListsNames(ListsByDefault):
    """What is not a command is the name of what is listed."""

    def means_list(self, args: list[str]) -> bool:
        return super().means_list(args) or (args[0] not in self.commands and args[0] not in _HELP)
