"""The options that say what a topic keeps, and its limits."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from clarion.cli.units import read_bound_s, read_count, read_size


class Retention(StrEnum):
    """What a topic keeps."""

    UNTIL_READ = "until-read"
    KEEP = "keep"


class AtBound(StrEnum):
    """What happens where a bound would overtake a reader."""

    REFUSE = "refuse"
    TRIM = "trim"


RetentionOption = Annotated[
    Retention | None,
    typer.Option(
        "--retention",
        help="until-read: until every subscriber has it, as topics are where nobody says otherwise."
        " keep: read or not, within --max-age and --max-size.",
    ),
]
MaxAge = Annotated[
    float | None,
    typer.Option("--max-age", parser=read_bound_s, metavar="TIME|none", help="With keep: older messages go (7d)."),
]
MaxSize = Annotated[
    int | None,
    typer.Option("--max-size", parser=read_size, metavar="SIZE|none", help="Bytes of messages it holds (10GB)."),
]
AtBoundOption = Annotated[
    AtBound | None,
    typer.Option(
        "--at-bound",
        help="Where a bound would overtake a subscriber. refuse: puts must wait. trim: the oldest go, and readers are"
        " told what they missed.",
    ),
]
Ttl = Annotated[
    float | None,
    typer.Option(
        "--ttl", parser=read_bound_s, metavar="TIME|none", help="Messages expire so long after they were put (1h)."
    ),
]
MaxBatch = Annotated[
    int | None,
    typer.Option("--max-batch", parser=read_size, metavar="SIZE|none", help="Bytes of a batch, and so of a message."),
]
MaxSubscriptions = Annotated[
    int | None, typer.Option("--max-subscriptions", parser=read_count, metavar="N|none", help="So many subscribe.")
]
