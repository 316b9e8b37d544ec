"""Start of a namespace whose file makes an MCP server: `python -m app.server_main [--check] FILE[:OBJECT]`; see `server_file`."""

import sys

from app.worker_main import load

if __name__ == "__main__":
    sys.exit(load("server_file").main(sys.argv[1:]))
