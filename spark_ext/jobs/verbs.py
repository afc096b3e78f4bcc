"""Jobs as verbs of the command line; pyproject.toml announces them."""

from __future__ import annotations

from pystore.cli.verbs import Verb
from spark_ext.jobs import (
    archive,
    delays,
    lag,
    rebuild,
    reconcile,
    restore,
    table,
    topics,
    transactions,
    verify,
)

__all__ = ["VERBS"]

VERBS = (
    Verb("spark transactions", transactions.run, group="Report on whole stores by Spark."),
    Verb("spark topics", topics.run),
    Verb("spark lag", lag.run),
    Verb("spark archive", archive.run),
    Verb("spark delays", delays.run),
    Verb("spark reconcile", reconcile.run),
    Verb("spark verify", verify.run),
    Verb("spark restore", restore.run, writes=True),
    Verb("spark table", table.run),
    Verb("spark rebuild", rebuild.run, writes=True),
)
