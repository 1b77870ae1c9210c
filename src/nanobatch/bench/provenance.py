"""Which code was measured, and when."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

SOURCE_FOLDER = Path(__file__).parent
GIT_TIMEOUT_S = 10


def now() -> str:
    """Return date and time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """Return the commit of this code, with `+` where files differ from it; None without git."""
    # Installed into somebody's repository, this file is there but not one of its own.
    is_tracked = _git("ls-files", "--error-unmatch", __file__) is not None
    head = _git("rev-parse", "--short=10", "HEAD")
    if not is_tracked or head is None:
        return None
    return f"{head}+" if _git("status", "--porcelain", "--untracked-files=no") else head


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(SOURCE_FOLDER), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
