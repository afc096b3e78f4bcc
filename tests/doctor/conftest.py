"""Puts the helpers of other folders on the path."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE), str(HERE.parent / "broker"), str(HERE.parent / "interop")]
