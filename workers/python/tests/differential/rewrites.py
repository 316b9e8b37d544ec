"""From what FastMCP lists to what ours is meant to list: the rewrites of the named differences of tools."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

from pydantic.fields import FieldInfo

from . import shapes
from .seen import Seen

Schema = dict[str, Any]

_WRAPPED = "x-fastmcp-wrap-result"


def definition(seen: Seen) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The case's function."""
    return _parsed(seen.case.source, seen.case.name)


@functools.cache
def _parsed(source: str, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    found = [it for it in ast.walk(ast.parse(source)) if isinstance(it, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return next((it for it in found if it.name == name), None)


def parameter(seen: Seen, name: str) -> tuple[str, str]:
    """A parameter's annotation and its default, as they are written."""
    function = definition(seen)
    if function is None:
        return "", ""
    plain, keyword_only = function.args, function.args.kw_defaults
    defaults = [None] * (len(plain.args) - len(plain.defaults)) + list(plain.defaults) + list(keyword_only)
    for it, default in zip([*plain.args, *plain.kwonlyargs], defaults, strict=True):
        if it.arg == name and it.annotation is not None:
            return ast.unparse(it.annotation), ast.unparse(default) if default is not None else ""
    return "", ""


def returns(seen: Seen) -> str:
    """The return annotation, as it is written."""
    return _returns(seen.case.source, seen.case.name)


@functools.cache
def _returns(source: str, name: str) -> str:
    function = _parsed(source, name)
    return "" if function is None or function.returns is None else ast.unparse(function.returns)


def returned(seen: Seen) -> str:
    """What the function returns, if that is all it does."""
    return _returned(seen.case.source, seen.case.name)


@functools.cache
def _returned(source: str, name: str) -> str:
    function = _parsed(source, name)
    last = None if function is None else function.body[-1]
    return ast.unparse(last.value) if isinstance(last, ast.Return) and last.value is not None else ""


def meant(text: str) -> Any:
    """The object that an annotation or a value of the tool files stands for."""
    return eval(text, {**vars(shapes), "Context": type("Context", (), {})})


def context_of_one_call(seen: Seen) -> Any:
    missing = (
        "client_extension_settings client_id client_supports_extension close_sse_stream delete_state disable_components "
        "enable_components fastmcp get_prompt get_state input_responses is_background_task lifespan_context list_prompts "
        "list_resources origin_request_id read_resource request_context request_state reset_visibility send_notification "
        "session session_id set_state task_id transport"
    )
    own = (
        "client_capabilities client_info critical elicit_url list_roots notice sample send_prompt_list_changed "
        "send_resource_list_changed send_resource_updated send_tool_list_changed traceparent tracestate"
    )
    return sorted((set(seen.theirs) - set(missing.split())) | set(own.split()))


def two_contexts(seen: Seen) -> Any:
    return False if seen.case.source.count(": Context") > 1 else seen.theirs


def lost_return_type(seen: Seen) -> Any:
    return True if "-> 'Missing'" in seen.case.source else seen.theirs


def description_is_there(seen: Seen) -> Any:
    return {"description": "", **seen.theirs}


def no_empty_tags(seen: Seen) -> Any:
    meta = seen.theirs.get("_meta", {})
    labels = meta.get("fastmcp", {})
    if labels.get("tags") != []:
        return seen.theirs
    labels = {key: value for key, value in labels.items() if key != "tags"}
    meta = {**{key: value for key, value in meta.items() if key != "fastmcp"}, **({"fastmcp": labels} if labels else {})}
    rest = {key: value for key, value in seen.theirs.items() if key != "_meta"}
    return {**rest, "_meta": meta} if meta else rest


def no_derived_titles(seen: Seen) -> Any:
    def change(name: str, schema: Schema) -> Schema:
        derived = name.replace("_", " ").title()
        return {key: value for key, value in schema.items() if key != "title" or value != derived}

    return _with_properties(seen, change)


def kept_words(seen: Seen) -> Any:
    def change(name: str, schema: Schema) -> Schema:
        hint, default = parameter(seen, name)
        marks = getattr(meant(hint), "__metadata__", ()) if hint.startswith("Annotated[") else ()
        words = [mark for mark in marks if isinstance(mark, str)]
        if len(words) == 1 and len(marks) > 1:
            return {**schema, "description": words[0]}
        if "typing.Pattern" in hint or "ipaddress." in hint:
            marks = (*marks, meant(default)) if default.startswith("Field(") else marks
            fields = [mark for mark in marks if isinstance(mark, FieldInfo)]
            said = {key: getattr(mark, key) for mark in fields for key in ("description", "title", "examples")}
            return {**schema, **{key: value for key, value in said.items() if value}}
        return schema

    return _with_properties(seen, change)


def accepted_alias(seen: Seen) -> Any:
    schema = seen.theirs["inputSchema"]
    if "AliasChoices('one'" not in seen.case.source or "a" not in schema["properties"]:
        return seen.theirs
    found = {**schema, "properties": {"one": schema["properties"]["a"]}}
    if "required" in found:
        found["required"] = ["one"]
    return {**seen.theirs, "inputSchema": found}


def nan_is_null(seen: Seen) -> Any:
    def change(schema: Schema) -> Schema:
        if schema.get("anyOf") == [{"type": ["number", "null"]}, {"type": "null"}]:
            return {**{key: value for key, value in schema.items() if key != "anyOf"}, "type": ["number", "null"]}
        return {**schema, "type": ["number", "null"]} if schema.get("type") == "number" else schema

    return _with_output(seen, change)


def true_formats(seen: Seen) -> Any:
    untrue = {"date-time", "time", "duration", "path", "uri", "password", "binary"}

    def change(schema: Schema) -> Schema:
        if schema.get("format") in untrue:
            schema = {key: value for key, value in schema.items() if key not in ("format", "minLength")}
        if schema.get("type") == "integer" and "-> Right" in seen.case.source:
            schema = {key: value for key, value in schema.items() if key != "enum"}
        untold = {"uniqueItems", "pattern"} if schema.get("type") != "number" else {"multipleOf"}
        return {key: value for key, value in schema.items() if key not in untold}

    return _with_output(seen, change)


def written_by_alias(seen: Seen) -> Any:
    if "-> Aliased" not in seen.case.source:
        return seen.theirs
    names = {"from_": "from", "to": "till"}
    schema = seen.theirs["outputSchema"]
    properties = {names[name]: inner for name, inner in schema["properties"].items()}
    return {**seen.theirs, "outputSchema": {**schema, "properties": properties, "required": ["from"]}}


def objects_as_they_are(seen: Seen) -> Any:
    inner = _wrapped(seen)
    branches = (inner or {}).get("anyOf", (inner or {}).get("oneOf", ()))
    if inner is None or not branches or any(branch.get("type") != "object" for branch in branches):
        return seen.theirs
    return {**seen.theirs, "outputSchema": {"type": "object", **inner}}


def no_schema_for_either(seen: Seen) -> Any:
    inner = _wrapped(seen)
    if inner is None:
        return seen.theirs
    kinds = {branch.get("type") == "object" for branch in inner.get("anyOf", ())}
    if inner != {} and len(kinds) < 2:
        return seen.theirs
    return {key: value for key, value in seen.theirs.items() if key != "outputSchema"}


def no_empty_schema(seen: Seen) -> Any:
    if _wrapped(seen) not in ({"items": {}, "type": "array"}, {"type": "null"}):
        return seen.theirs
    return {key: value for key, value in seen.theirs.items() if key != "outputSchema"}


def said_of_the_result(seen: Seen) -> Any:
    hint = returns(seen)
    title = getattr(meant(hint).__metadata__[0], "title", None) if hint.startswith("Annotated[") else None
    if not isinstance(title, str):
        return seen.theirs
    return {**seen.theirs, "outputSchema": {**seen.theirs["outputSchema"], "title": title}}


def _wrapped(seen: Seen) -> Schema | None:
    """The schema inside `{"result": …}`."""
    output = seen.theirs.get("outputSchema") or {}
    return output["properties"]["result"] if output.get(_WRAPPED) else None


def _with_properties(seen: Seen, change: Callable[[str, Schema], Schema]) -> Any:
    schema = seen.theirs["inputSchema"]
    properties = {name: change(name, inner) for name, inner in schema["properties"].items()}
    return {**seen.theirs, "inputSchema": {**schema, "properties": properties}}


def _with_output(seen: Seen, change: Callable[[Schema], Schema]) -> Any:
    if "outputSchema" not in seen.theirs:
        return seen.theirs
    return {**seen.theirs, "outputSchema": _everywhere(seen.theirs["outputSchema"], change)}


def _everywhere(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    if isinstance(schema, list):
        return [_everywhere(item, change) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            found[key] = {name: _everywhere(inner, change) for name, inner in value.items()}
        else:
            found[key] = value if key in ("default", "enum", "const", "required") else _everywhere(value, change)
    return change(found)
