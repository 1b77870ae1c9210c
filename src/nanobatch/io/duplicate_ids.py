"""Which custom ids earlier batch lines used, for any number of lines in bounded memory.

Knows ids and where they stood, not rows. The ids live in a temporary SQLite database, which
SQLite keeps in a small cache and spills to a file that has no name and dies with the process.
"""

import sqlite3
from types import TracebackType
from typing import Self

from xxhash import xxh3_128_digest

from nanobatch.errors import StorageError

CACHE_KIB = 8192


class DuplicateIds:
    """The first use of every custom id. For one thread at a time.

    Ids are kept as 128-bit hashes: among 10^9 ids, two share one with probability 10^-21.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for setting in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{CACHE_KIB}"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute(
            "CREATE TABLE first_use (id_hash BLOB PRIMARY KEY, row_index INTEGER, "
            "path INTEGER, line TEXT) WITHOUT ROWID"
        )
        self._database.execute("BEGIN")
        self._path_numbers: dict[str, int] = {}

    def first_use(self, custom_id: str, row_index: int, *, location: str) -> str | None:
        """Note that a row uses an id, and return where another row before it did.

        Args:
            custom_id: The id of a batch line.
            row_index: The row; asking again for the row that was first is no duplicate.
            location: `file:line` of the row.

        Returns:
            The location of the first use, or None when it is this one.

        Raises:
            StorageError: The temporary file cannot be written.
        """
        id_hash = xxh3_128_digest(custom_id.encode(errors="surrogatepass"))
        path, _, line = location.rpartition(":")
        path_number = self._path_numbers.setdefault(path, len(self._path_numbers))
        try:
            is_first = self._database.execute(
                "INSERT OR IGNORE INTO first_use VALUES (?, ?, ?, ?)",
                (id_hash, row_index, path_number, line),
            ).rowcount
            return None if is_first else self._earlier_use(id_hash, row_index)
        except sqlite3.Error as error:
            raise StorageError(
                f"cannot keep the custom ids in a temporary file: {error}",
                hint="free space where temporary files go, or set SQLITE_TMPDIR to another folder",
            ) from error

    def _earlier_use(self, id_hash: bytes, row_index: int) -> str | None:
        first_row_index, path_number, line = self._database.execute(
            "SELECT row_index, path, line FROM first_use WHERE id_hash = ?", (id_hash,)
        ).fetchone()
        if first_row_index == row_index:
            return None
        return f"{list(self._path_numbers)[path_number]}:{line}"

    def close(self) -> None:
        """Drop the ids; may be called again."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
