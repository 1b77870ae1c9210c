"""The options of `nanobatch run` that say how tokens are drawn."""

from typing import Annotated

import typer

from nanobatch.cli import options

MaxTokensOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Most tokens to generate (default: the room left, at most 4,096).",
        rich_help_panel=options.SAMPLING_PANEL,
        show_default=False,
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        metavar="T",
        help="0 takes the most likely token (default: the model's, else 1).",
        rich_help_panel=options.SAMPLING_PANEL,
        show_default=False,
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        help="Sample from the most likely tokens that reach this probability.",
        rich_help_panel=options.SAMPLING_PANEL,
        show_default=False,
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        help="Sample from this many most likely tokens; 0 for all.",
        rich_help_panel=options.SAMPLING_PANEL,
        show_default=False,
    ),
]
MinPOption = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        help="Drop tokens less likely than this share of the most likely.",
        rich_help_panel=options.SAMPLING_PANEL,
        show_default=False,
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Run seed; each row draws its own from it and its index.",
        rich_help_panel=options.SAMPLING_PANEL,
    ),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="String that ends an answer; may be given several times.",
        rich_help_panel=options.SAMPLING_PANEL,
        show_default=False,
    ),
]
SamplesOption = Annotated[
    int | None,
    typer.Option(
        "--n",
        metavar="N",
        help="Answers per row (default: 1).",
        rich_help_panel=options.SAMPLING_PANEL,
        show_default=False,
    ),
]
