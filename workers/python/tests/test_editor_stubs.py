"""The stubs for editors (`stubs/`) name what the runtime supplies: the same modules, names, parameters and keywords."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from app import decorator, registry, shim

from environments import RUNTIME

STUBS = RUNTIME / "stubs"
WHEEL_MAKER = RUNTIME.parents[1] / ".ci" / "stubs-wheel"

SUPPLIED: dict[str, dict[str, Any]] = {
    **{
        module: {
            **names,
            **{
                name: getattr(importlib.import_module(f"app.{supplier}"), name)
                for name, supplier in shim._LATER.get(module, {}).items()
            },
        }
        for module, names in shim._SUPPLIED.items()
    },
    "app.registry": {"ToolDefinition": registry.ToolDefinition, "ToolRegistry": registry.ToolRegistry},
}
"""Objects of the runtime, by the module and the name that authors import."""

DECORATORS = {"tool": "ToolOptions", "resource": "ResourceOptions", "prompt": "PromptOptions"}
CLASSES = sorted(
    (module, name) for module, names in SUPPLIED.items() for name, found in names.items() if inspect.isclass(found)
)


def stub_path(module: str) -> Path:
    package, _, rest = module.partition(".")
    path = STUBS / f"{package}-stubs" / rest.replace(".", "/")
    return path / "__init__.pyi" if path.is_dir() else path.with_suffix(".pyi")


def names_of(tree: ast.Module) -> dict[str, list[ast.AST]]:
    """Public definitions and re-exports of a stub; overloads of one name together."""
    found: dict[str, list[ast.AST]] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.asname == alias.name:
                    found.setdefault(alias.name, []).append(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, []).append(node)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
    return {name: nodes for name, nodes in found.items() if not name.startswith("_")}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def class_of(module: str, name: str) -> ast.ClassDef:
    """The definition of a class, wherever the module's stub has it from."""
    path = stub_path(module)
    (node,) = names_of(parsed(path))[name]
    if isinstance(node, ast.ImportFrom):
        folder = path.parents[node.level - 1]
        parts = (node.module or "").split(".")
        there = folder.joinpath(*parts)
        path = there / "__init__.pyi" if there.is_dir() else there.with_suffix(".pyi")
        (node,) = (it for it in parsed(path).body if isinstance(it, ast.ClassDef) and it.name == name)
    assert isinstance(node, ast.ClassDef)
    return node


def methods_of(node: ast.ClassDef) -> dict[str, list[ast.FunctionDef]]:
    found: dict[str, list[ast.FunctionDef]] = {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            found.setdefault(item.name, []).append(item)
    return found


def shape(function: ast.FunctionDef) -> list[tuple[str, str, str]]:
    """Parameters of a stub's function: kind, name, and the default as text."""
    given = function.args
    places = [*given.posonlyargs, *given.args]
    defaults = [""] * (len(places) - len(given.defaults)) + [ast.unparse(it) for it in given.defaults]
    found = [("place", it.arg, default) for it, default in zip(places, defaults, strict=True)]
    named = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    found += [("named", it.arg, "" if default is None else ast.unparse(default)) for it, default in named]
    return found[1:] if found and found[0][1] == "self" else found


def real_shape(function: Any) -> list[tuple[str, str, str]]:
    """Parameters of the runtime's function, in the form of `shape`."""
    found = []
    for it in inspect.signature(function).parameters.values():
        kind = "named" if it.kind is it.KEYWORD_ONLY else "place"
        if it.name != "self" and it.kind not in (it.VAR_KEYWORD, it.VAR_POSITIONAL):
            found.append((kind, it.name, "" if it.default is it.empty else repr(it.default)))
    return found


def test_each_module_and_name_of_the_runtime_has_a_stub_and_no_other_has():
    for module, names in SUPPLIED.items():
        assert set(names_of(parsed(stub_path(module)))) == set(names), module
    stubs = {path for path in STUBS.rglob("*.pyi") if path.name == "__init__.pyi" or not path.name.startswith("_")}
    assert stubs == {stub_path(module) for module in [*SUPPLIED, "app"]}


@pytest.mark.parametrize(("module", "name"), CLASSES)
def test_classes_have_the_methods_of_the_runtime_with_the_same_parameters(module, name):
    real = SUPPLIED[module][name]
    stubs = methods_of(class_of(module, name))
    assert {it for it in stubs if not it.startswith("_")} == public_methods(real)
    if real.__init__ not in (object.__init__, Exception.__init__) and name not in ("Context", "Image", "Audio"):
        assert "__init__" in stubs
    for method, overloads in stubs.items():
        for overload in overloads:
            if isinstance(inspect.getattr_static(real, method), property):
                assert [ast.unparse(it) for it in overload.decorator_list] == ["property"], method
            elif method != "__init__" or not hasattr(real, "_names"):
                fits = fits_overload(real_shape(getattr(real, method)), shape(overload))
                assert fits, (method, real_shape(getattr(real, method)), shape(overload))


def public_methods(kind: type) -> set[str]:
    found = {name for name in dir(kind) if not name.startswith("_")}
    found = {name for name in found if callable(getattr(kind, name)) or isinstance(vars(kind).get(name), property)}
    return found - set(dir(Exception))


def fits_overload(real: list[tuple[str, str, str]], overload: list[tuple[str, str, str]]) -> bool:
    """Whether the parameters are the same. An overload may require one that has a default, and need not repeat a factory's."""
    return [it[:2] for it in real] == [it[:2] for it in overload] and all(
        stub in ("", default) or (default, stub) == ("<factory>", "...")
        for (_, _, default), (_, _, stub) in zip(real, overload, strict=True)
    )


@pytest.mark.parametrize("kind", DECORATORS)
def test_decorators_take_the_keywords_of_the_runtime(kind):
    options = {it.name: it for it in parsed(STUBS / "fastmcp-stubs/_options.pyi").body if isinstance(it, ast.ClassDef)}

    def keywords(name: str) -> set[str]:
        node = options[name]
        above = [keywords(base.id) for base in node.bases if isinstance(base, ast.Name) and base.id in options]
        own = {it.target.id for it in node.body if isinstance(it, ast.AnnAssign) and isinstance(it.target, ast.Name)}
        return own.union(*above)

    assert keywords(DECORATORS[kind]) == set(decorator.OPTIONS[kind]) - {"uri"}
    for function in names_of(parsed(stub_path(f"fastmcp.{kind}s")))[kind]:
        assert isinstance(function, ast.FunctionDef) and function.args.kwarg is not None
        assert ast.unparse(function.args.kwarg.annotation or ast.Constant("")) == f"Unpack[{DECORATORS[kind]}]"


def test_dependencies_have_the_parameters_of_the_runtime():
    stubs = names_of(parsed(stub_path("fastmcp.dependencies")))
    for name, real in SUPPLIED["fastmcp.dependencies"].items():
        for function in stubs[name]:
            assert isinstance(function, ast.FunctionDef)
            assert shape(function) == real_shape(real), name


@pytest.mark.parametrize("name", ["AppConfig", "ResourceCSP", "ResourcePermissions"])
def test_settings_of_pages_have_the_keywords_of_the_runtime(name):
    real = SUPPLIED["fastmcp.apps.config"][name]
    node = class_of("fastmcp.apps.config", name)
    (init,) = methods_of(node)["__init__"]
    members = {it.target.id for it in node.body if isinstance(it, ast.AnnAssign) and isinstance(it.target, ast.Name)}
    assert {it for _, it, _ in shape(init)} == members == {*real._names, *real._known}


def test_constants_are_texts_as_the_stubs_say():
    for name in ("UI_EXTENSION_ID", "UI_MIME_TYPE"):
        assert isinstance(SUPPLIED["fastmcp.apps"][name], str)


def test_names_beyond_the_stubs_are_the_real_packages_as_at_run_time():
    for path in STUBS.rglob("*.pyi"):
        if path.name == "__init__.pyi" or not path.name.startswith("_") and path.parts[-2] != "app-stubs":
            assert "def __getattr__(name: str) -> Any: ..." in path.read_text(), path
    for package in STUBS.iterdir():
        assert (package / "py.typed").read_text() == "partial\n"


def test_the_wheel_installs_offline_and_holds_the_stubs_alone(tmp_path):
    for folder in ("one", "two"):
        made = subprocess.run([sys.executable, WHEEL_MAKER, "1.2.3", tmp_path / folder], capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
    name = "tooldock_worker_stubs-1.2.3-py3-none-any.whl"
    wheel, again = tmp_path / "one" / name, tmp_path / "two" / name
    assert wheel.read_bytes() == again.read_bytes()
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--target", target]
    done = subprocess.run([*pip, wheel], capture_output=True, text=True, env={**os.environ, "PIP_NO_INPUT": "1"})
    assert done.returncode == 0, done.stderr
    for path in STUBS.rglob("*"):
        if path.is_file():
            assert (target / path.relative_to(STUBS)).read_bytes() == path.read_bytes()
    assert {it.name for it in target.iterdir()} == {"app-stubs", "fastmcp-stubs", "tooldock_worker_stubs-1.2.3.dist-info"}
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read("tooldock_worker_stubs-1.2.3.dist-info/METADATA").decode()
    assert "Name: tooldock-worker-stubs\n" in metadata and "Version: 1.2.3\n" in metadata
