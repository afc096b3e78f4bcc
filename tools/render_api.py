"""Renders the reference of the public API as HTML: `python tools/render_api.py FOLDER`.

Public is what the packages export, and the modules that their READMEs name as public.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULES = (
    "pystore", "pystore.settings", "pystore.setting_types", "pystore.metadata", "pystore.errors",
    "pystore.audit", "pystore.repair",
    "broker", "broker.client", "broker.broker", "broker.namesrv",
    "broker.services.hooks", "broker.remoting.client", "broker.wire.command",
    "broker.wire.codes", "spark_ext",
    # What is left out of the pages above, private names too: pdoc takes a "!" as "not".
    "!pystore.base", "!pystore.cli", "!pystore.cold", "!pystore.configuration", "!pystore.files",
    "!pystore.filter",
    "!pystore.format", "!pystore.meta", "!pystore.native", "!pystore.store",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    import pdoc
    import pdoc.render

    sys.path.insert(0, str(ROOT))
    pdoc.render.configure(docformat="restructuredtext", footer_text="rocketmq-pystore")
    into = Path(arguments[0])
    with warnings.catch_warnings():
        # Types that only the type checker imports are shown as they are written.
        warnings.filterwarnings("ignore", message="Error parsing type annotation")
        warnings.filterwarnings("error", message="Couldn't import")
        pdoc.pdoc(*MODULES, output_directory=into)
    print(f"{into / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
