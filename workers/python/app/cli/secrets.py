"""``python -m app.cli.secrets …``: the same as ``tooldock secrets …``, which this becomes.

The program is the one that ``TOOLDOCK_BIN`` names, or ``tooldock`` on the ``PATH``. Nothing is read or decided here.
"""

import os
import sys


def main() -> int:
    """Become ``tooldock secrets`` with the same arguments, terminal and environment."""
    program = os.environ.get("TOOLDOCK_BIN") or "tooldock"
    try:
        os.execvp(program, [program, "secrets", *sys.argv[1:]])
    except OSError as error:
        print(f"tooldock: {program}: {error.strerror}; TOOLDOCK_BIN names the program", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
