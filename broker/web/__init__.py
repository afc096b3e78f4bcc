"""A page to look at a store in a browser: `pystore web FOLDER`."""

from __future__ import annotations
