"""Tests of an author's tools: `python -m app.test_main --namespace NS --tools DIR [PYTEST OPTIONS]`; see `testing`.

The command runs in the namespace's environment, in which pytest must be installed, and with the namespace's variables.
"""

import sys

from app.worker_main import load

if __name__ == "__main__":
    sys.exit(load("testing").main(sys.argv[1:]))
