"""The command line: ``pystore VERB STORE``, to look into a store, to follow it, to fill it.

One verb is one module of this folder, with one function ``run``; ``_verbs.py`` holds the table of
them and loads those of other packages, which are written against ``verbs.py``. What the verbs
share: ``_app.py`` (options that every verb has, exit codes, errors),
``_session.py`` (opening a store), ``_output.py`` (the one renderer, text or JSON),
``_progress.py``, ``_values.py`` and ``_records.py`` (how numbers, times and messages are shown).
See docs/cli.md.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; returns the exit code. arguments: None takes those of the process."""
    # Not before it runs: the table of verbs loads other packages' verbs, which import verbs.py.
    from pystore.cli import _app

    return _app.main(arguments)
