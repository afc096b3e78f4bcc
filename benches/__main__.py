"""`python -m benches` lists the benches, `python -m benches NAME` runs one; --help: its options."""

import sys

from benches.harness import main

sys.exit(main(sys.argv[1:]))
