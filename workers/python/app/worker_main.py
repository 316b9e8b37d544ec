"""Start of a namespace's worker: `python -m app.worker_main --namespace NS --socket FILE --venv DIR`; see `boot`.

The runtime does not keep the name it is started by: `app` is what authors call files, too. It loads itself as the
package `tooldock_worker`, and takes its folder out of the import path, so that `import app` in a tool file means the
author's.

Processes that `multiprocessing` spawns in a tool run this file again, under the name `__mp_main__`; there it makes the
tool files importable, in which the function to run is.
"""

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

_PACKAGE = "tooldock_worker"
_HERE = os.path.dirname(os.path.abspath(__file__))


def load(name):
    """A module of the runtime, under its own package's name."""
    if _PACKAGE not in sys.modules:
        package = ModuleType(_PACKAGE, "The runtime inside a namespace's Python worker process.")
        package.__path__ = [_HERE]
        package.__spec__ = ModuleSpec(_PACKAGE, None, is_package=True)
        sys.modules[_PACKAGE] = package
        sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != os.path.dirname(_HERE)]
        for module in [it for it in sys.modules if it.partition(".")[0] == "app"]:
            del sys.modules[module]
        # Without a spec, `multiprocessing` finds this file by its path and not by a name that is gone.
        sys.modules["__main__"].__spec__ = None
    return importlib.import_module(f"{_PACKAGE}.{name}")


if __name__ == "__main__":
    _boot = load("boot")
    _boot.leave(_boot.main())
elif __name__ == "__mp_main__":
    load("children").prepare(sys.argv)
