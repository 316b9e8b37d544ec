"""Runs a namespace's server file: `python -m app.server_main [--check SECONDS] FILE[:OBJECT]`; see `server_file`."""

import sys

from app.worker_main import load

if __name__ == "__main__":
    status = load("server_file").main(sys.argv[1:])
    if sys.argv[1:2] == ["--check"]:
        # Threads that the import started must not keep the process alive.
        load("boot").leave(status)
    sys.exit(status)
