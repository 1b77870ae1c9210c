"""Show some answers of a finished job beside their prompts: `show_answers.py PROMPTS ANSWERS`.

PROMPTS is a JSONL file of chat rows, ANSWERS the Parquet file that `nanobatch run` made of it.
"""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

NUM_SHOWN = 12


def read_user_turns(path: Path) -> list[str]:
    """Return the last message of every row."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["messages"][-1]["content"] for line in lines]


def answers_table(user_turns: list[str], answers: list[dict[str, str | None]]) -> Table:
    """Return a table of rows taken evenly from the whole job."""
    table = Table(title=f"{NUM_SHOWN} of {len(answers)} answers", show_lines=True)
    table.add_column("prompt", ratio=1)
    table.add_column("answer", ratio=1)
    for place in range(NUM_SHOWN):
        row = place * len(answers) // NUM_SHOWN
        answer = answers[row]
        text = answer["generated_text"]
        table.add_row(user_turns[row], answer["error_message"] if text is None else text.strip())
    return table


def main() -> None:
    """Print the table for the two files on the command line."""
    prompts, output = map(Path, sys.argv[1:3])
    answers = pq.read_table(output, columns=["generated_text", "error_message"]).to_pylist()
    console = Console(width=min(100, Console().width))
    console.print(answers_table(read_user_turns(prompts), answers))


if __name__ == "__main__":
    main()
