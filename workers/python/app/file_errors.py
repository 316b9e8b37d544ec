"""Explanations of exceptions from an author's file: one sentence, with the file and the line.

For a missing module, the sentence also names the package to install. `PACKAGES` has the names that differ from the module's.
"""

from __future__ import annotations

import os
import sys

PACKAGES = {
    "Crypto": "pycryptodome",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "git": "gitpython",
    "github": "PyGithub",
    "google.protobuf": "protobuf",
    "jose": "python-jose",
    "jwt": "pyjwt",
    "magic": "python-magic",
    "mcp": "mcp[cli]",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "telegram": "python-telegram-bot",
    "usb": "pyusb",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""Packages by the name of their module, where the two names differ."""


class RefusedFile(Exception):
    """Error: the file was refused before it was read. The message gives the reason."""


def one_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or the name of its class if the message is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def code_of(error: BaseException) -> str:
    """Returns the code of the issue about a file whose import failed with `error`."""
    if isinstance(error, ImportError):
        return "dependency_error"
    return "exit_at_import" if isinstance(error, SystemExit) else "import_error"


def explain(error: BaseException, folder: str, names_package: bool = True) -> str:
    """Returns one line of text: the fault, and the file and line in the folder where it occurred.

    `names_package`: true if the text names the package of a missing module; false if it does not.
    """
    if isinstance(error, SyntaxError):
        where = f" ({os.path.basename(error.filename or '')} line {error.lineno})" if error.lineno else ""
        return f"{type(error).__name__}: {error.msg}{where}"
    if isinstance(error, SystemExit):
        what = f"the file calls exit({error.code!r}) when it is imported"
    elif isinstance(error, (ImportError, RefusedFile)):
        what = one_line(error) + (_missing_package(error, folder) if names_package else "")
    else:
        what = f"{type(error).__name__}: {one_line(error)}"
    return what + line_of(error, folder)


def line_of(error: BaseException, folder: str) -> str:
    """Returns the innermost line of the folder's files that the error went through, in brackets; empty if there is none."""
    root = os.path.realpath(folder)
    where = ""
    step = error.__traceback__
    while step is not None:
        path = step.tb_frame.f_code.co_filename
        if path.startswith(root + os.sep):
            where = f" ({os.path.relpath(path, root)} line {step.tb_lineno})"
        step = step.tb_next
    return where


def _missing_package(error: BaseException, folder: str) -> str:
    """Returns the advice to write a missing package into `requirements.txt`; empty for other errors."""
    if not isinstance(error, ModuleNotFoundError) or not error.name or "requirements.txt" in str(error):
        return ""
    top = error.name.partition(".")[0]
    # No package is missing if a package lacks the submodule, or if the module is Python's own or a file of the folder.
    if top in sys.modules or top in sys.stdlib_module_names or _is_in(folder, top):
        return ""
    package = PACKAGES.get(error.name) or PACKAGES.get(top) or top
    return f"; write {package} into requirements.txt"


def _is_in(folder: str, name: str) -> bool:
    return os.path.exists(os.path.join(folder, name)) or os.path.exists(os.path.join(folder, f"{name}.py"))
