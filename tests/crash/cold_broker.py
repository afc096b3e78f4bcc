"""``pystore broker``, whose collector runs every few seconds and takes what is a minute old; its
manifests have few rows, so that pages are written often."""

from __future__ import annotations

import sys
from functools import partial

from broker.services.cold import uploads
from pystore.cli import main
from pystore.cold import manifest
from pystore.cold.upkeep import collect

#: Longer than any writer of a test takes from a segment to its manifest.
GRACE_S = 60.0

if __name__ == "__main__":
    uploads._COLLECT_FIRST_S = uploads._COLLECT_S = 3.0
    uploads.collect = partial(collect, grace_s=GRACE_S)  # type: ignore[assignment]
    manifest._ROWS_KEPT, manifest._ROWS_A_PAGE_MIN, manifest._ROWS_MORE = 2, 3, 1
    sys.exit(main(["broker", *sys.argv[1:]]))
