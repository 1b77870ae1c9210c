"""Write the sample files beside this script, or into a folder given as argument.

The same rows every time. Run `python sample_data/make_samples.py` after changing
`sample_texts.py`.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sample_texts import (
    COMPLETION_PROMPTS,
    EXTRACT_TASKS,
    PROBLEM_TEXTS,
    QUESTIONS,
    REVIEWS,
    REWRITE_TASKS,
    SENTIMENT_TEXTS,
    SYSTEM_PROMPT,
)

SENTIMENT_TASK = "Is this review positive or negative? Answer with one word."
PROBLEM_TASK = "What is the problem?"
LABEL_MAX_TOKENS = 8


def user_turns() -> Iterator[tuple[str, str]]:
    """Yield (task, user turn) of every row of prompts.jsonl."""
    for text in SENTIMENT_TEXTS:
        yield "sentiment", f"{SENTIMENT_TASK}\n\n{text}"
    for text in PROBLEM_TEXTS:
        yield "problem", f"{PROBLEM_TASK}\n\n{text}"
    for question, text in EXTRACT_TASKS:
        yield "extract", f"{question}\n\n{text}"
    for instruction, text in REWRITE_TASKS:
        yield "rewrite", f"{instruction}\n\n{text}"
    for question in QUESTIONS:
        yield "answer", question


def chat(user_turn: str) -> list[dict[str, str]]:
    """Return the messages that put a user turn under the shared system prompt."""
    return [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": user_turn},
    ]


def prompt_rows() -> Iterator[dict[str, object]]:
    """Yield the flat chat rows of prompts.jsonl; rows that want a label say how long it may be."""
    for number, (task, user_turn) in enumerate(user_turns(), 1):
        row: dict[str, object] = {"id": f"{task}-{number:02d}", "task": task}
        row["messages"] = chat(user_turn)
        if task == "sentiment":
            row["max_tokens"] = LABEL_MAX_TOKENS
        yield row


def batch_lines() -> Iterator[dict[str, object]]:
    """Yield OpenAI batch lines: chats, then plain completions."""
    for number, (task, user_turn) in enumerate(list(user_turns())[::6], 1):
        yield {
            "custom_id": f"chat-{number:02d}-{task}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "smollm2-135m-instruct",
                "messages": chat(user_turn),
                "temperature": 0,
                "max_tokens": 32,
            },
        }
    for number, prompt in enumerate(COMPLETION_PROMPTS, 1):
        yield {
            "custom_id": f"completion-{number:02d}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {
                "model": "smollm2-135m-instruct",
                "prompt": prompt,
                "temperature": 0,
                "max_tokens": 24,
                "stop": ["\n\n"],
            },
        }


def reviews_table() -> pa.Table:
    """Return the table of reviews: id, product, rating, review."""
    products, ratings, reviews = zip(*REVIEWS, strict=True)
    return pa.table(
        {
            "id": pa.array(range(1, len(REVIEWS) + 1), pa.int64()),
            "product": pa.array(products, pa.string()),
            "rating": pa.array(ratings, pa.int8()),
            "review": pa.array(reviews, pa.string()),
        }
    )


def write_jsonl(path: Path, rows: Iterable[dict[str, object]]) -> None:
    """Write one JSON object per line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_samples(folder: Path) -> None:
    """Write the three sample files into a folder."""
    write_jsonl(folder / "prompts.jsonl", prompt_rows())
    write_jsonl(folder / "openai_batch.jsonl", batch_lines())
    pq.write_table(reviews_table(), folder / "reviews.parquet", compression="zstd")


if __name__ == "__main__":
    write_samples(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
