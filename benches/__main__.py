"""`python -m benches` lists the benches, `python -m benches NAME` runs one; --help: its options.
`python -m benches all` runs those whose results are kept."""

import signal
import sys

from benches.harness import main

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what a bench has started ends with it
sys.exit(main(sys.argv[1:]))
