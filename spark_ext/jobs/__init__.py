"""Reports and copies of whole stores as Spark jobs: ``pystore spark NAME``, or
``python -m spark_ext.jobs.NAME``."""

from __future__ import annotations

__all__: list[str] = []
