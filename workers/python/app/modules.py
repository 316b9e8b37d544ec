"""Importing the Python files of a tools folder without touching `sys.path`.

Every file is one module of the package `tooldock_tools`, whatever else is called like it: a tool file `json.py` does
not shadow the standard library. Files reach each other with `from . import helper`, and also with `import helper`,
which this finder answers last, after every installed package, with that same module object.
Nothing is written into the folder: files are always compiled from their source, since a cached one is only as fresh as
the clock's resolution.

Finders and loaders are so by their methods. The base classes of `importlib.abc` would bring in zip files, temporary
files and random numbers, a twelfth of a worker's start.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType

from . import whole_pydantic
from .decorator import Registration, collecting

PACKAGE = "tooldock_tools"


class ToolModules:
    """Finds the modules of one tools folder."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        self.registrations: dict[str, list[Registration]] = {}

    def install(self) -> None:
        """Makes the folder importable, behind everything else that is."""
        package = ModuleType(PACKAGE, "The tool files of this namespace.")
        package.__path__ = []
        package.__spec__ = ModuleSpec(PACKAGE, None, is_package=True)
        sys.modules[PACKAGE] = package
        sys.meta_path.append(self)

    def load(self, filename: str) -> tuple[ModuleType, list[Registration]]:
        """Executes one tool file, if no other file has imported it before."""
        name = f"{PACKAGE}.{module_name(filename)}"
        module = importlib.import_module(name)
        return module, self.registrations.get(name, [])

    def inside(self, path: str) -> bool:
        """Whether the path, symlinks followed, is in the folder."""
        return os.path.realpath(path).startswith(self._root + os.sep)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.startswith(PACKAGE + "."):
            return self._spec(fullname, fullname.split(".")[1:])
        parent = fullname.rpartition(".")[0]
        if parent and sys.modules.get(parent) is not sys.modules.get(f"{PACKAGE}.{parent}", self):
            return None  # a submodule of somebody else's package
        if self._find(fullname.split(".")) is None:
            return None
        return ModuleSpec(fullname, _Alias(f"{PACKAGE}.{fullname}"))

    def _spec(self, fullname: str, parts: list[str]) -> ModuleSpec | None:
        found = self._find(parts)
        if found is None:
            return None
        path, is_package = found
        if not self.inside(path):
            raise ImportError(f"{os.path.basename(path)} leads out of the tools folder", name=fullname)
        loader = _FileLoader(fullname, path, self)
        spec = spec_from_file_location(fullname, path, loader=loader, submodule_search_locations=None)
        if spec is not None:
            # Empty, so that nobody but this finder looks for the package's own modules: each must exist only once.
            spec.submodule_search_locations = [] if is_package else None
        return spec

    def _find(self, parts: list[str]) -> tuple[str, bool] | None:
        path = os.path.join(self._root, *(file_stem(part) for part in parts))
        if os.path.isfile(os.path.join(path, "__init__.py")):
            return os.path.join(path, "__init__.py"), True
        if os.path.isfile(path + ".py"):
            return path + ".py", False
        return None


class _FileLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, modules: ToolModules) -> None:
        super().__init__(fullname, path)
        self._modules = modules

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        _bring_in_what_it_names(source)
        code: CodeType = self.source_to_code(source, self.path)
        return code

    def exec_module(self, module: ModuleType) -> None:
        with collecting() as registrations:
            super().exec_module(module)
        self._modules.registrations[module.__name__] = registrations


_FOR_ALL_OF_PYDANTIC = (b"pydantic", b"sys.path")

_SUBMODULES = (
    *("email.base64mime", "email.charset", "email.encoders", "email.errors", "email.header", "email.iterators"),
    *("email.message", "email.quoprimime", "email.utils"),
    *("importlib.abc", "importlib.metadata", "importlib.resources", "importlib.resources.abc", "urllib.parse"),
)


def _bring_in_what_it_names(source: bytes) -> None:
    """Imports what a file may take for granted since it always came with pydantic: `import urllib` is enough for
    `urllib.parse.quote` where somebody else has imported the submodule. A file that changes `sys.path` gets pydantic
    first, too: its own `random` must not become the one of pydantic."""
    if any(name in source for name in _FOR_ALL_OF_PYDANTIC):
        whole_pydantic.bring_in()
    for name in _SUBMODULES:
        if name.encode() in source and name not in sys.modules:
            with whole_pydantic.path_at_start():
                importlib.import_module(name)


class _Alias:
    """A second name for a module of the package."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns what stands in `sys.modules` afterwards, not the module it made for us.
        sys.modules[module.__name__] = importlib.import_module(self._name)


_DOT = "\N{ONE DOT LEADER}"


def module_name(filename: str) -> str:
    """The module name of `a.b.py`: dots would mean packages."""
    return filename.removesuffix(".py").replace(".", _DOT)


def file_stem(name: str) -> str:
    """The reverse of `module_name`."""
    return name.replace(_DOT, ".")
