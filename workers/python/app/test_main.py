"""Tests of an author's tools: `python -m app.test_main --namespace NS --tools DIR [PYTEST OPTIONS]`; see `testing`.

It runs in the namespace's environment, with the namespace's variables. pytest has to be a package there.
"""

import sys

from app.worker_main import load

if __name__ == "__main__":
    sys.exit(load("testing").main(sys.argv[1:]))
