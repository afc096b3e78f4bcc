"""Parts of answers by key, in SQLite: what a worker has made, what a session has got. A part that
comes again is known, so that a death of either side loses none and repeats none."""

import sqlite3


class Ledger:
    def __init__(self, file: str) -> None:
        self._db = sqlite3.connect(file, isolation_level=None, timeout=60)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("create table if not exists parts (key text primary key, text text)")

    def keep(self, key: str, text: str) -> bool:
        """Keeps a part; False: it is there already."""
        made = self._db.execute("insert or ignore into parts values (?, ?)", (key, text))
        return made.rowcount == 1

    def get(self, key: str) -> str | None:
        """Returns a part that was kept."""
        found = self._db.execute("select text from parts where key = ?", (key,)).fetchone()
        return None if found is None else str(found[0])

    def close(self) -> None:
        self._db.close()
