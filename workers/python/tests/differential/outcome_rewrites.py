"""From what a call gives in FastMCP to what it is meant to give here: the rewrites of the named differences of calls."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import jsonschema
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from .rewrites import meant, returned, returns
from .seen import Seen
from .sides import as_json

Outcome = dict[str, Any]

_FIELDS = {
    "missing_argument": ("Field required", "missing"),
    "missing_keyword_only_argument": ("Field required", "missing"),
    "unexpected_keyword_argument": ("Extra inputs are not permitted", "extra_forbidden"),
}


def no_wrap_mark(seen: Seen) -> Outcome:
    if seen.theirs.get("_meta") != {"fastmcp": {"wrap_result": True}}:
        return seen.theirs
    return _without(seen.theirs, "_meta")


def refusals_of_fields(seen: Seen) -> Outcome:
    if "refused" not in seen.theirs:
        return seen.theirs
    refused = [[name, *_FIELDS.get(kind, (message, kind))] for name, message, kind in seen.theirs["refused"]]
    return {**seen.theirs, "refused": refused}


def refusals_by_code(seen: Seen) -> Outcome:
    if "refused" not in seen.theirs:
        return seen.theirs
    return {**seen.theirs, **_refusal(seen.theirs["refused"])}


def _refusal(refused: list[list[str]]) -> Outcome:
    shown = "; ".join(f"{name}: {message}" for name, message, _ in refused[:3])
    more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
    return {"content": _text(f"invalid_arguments: {shown}{more}")}


def errors_by_code(seen: Seen) -> Outcome:
    kind = seen.case.raises or "ValidationError"
    if (message := _called(seen)) is None or kind in ("ModuleNotFoundError", "NotFoundError", "ToolError"):
        return seen.theirs
    if kind == "StopIteration":
        kind = "RuntimeError"  # Python's own word for one that leaves a coroutine
    text = f"{kind}: {message}" if message else kind
    return {**seen.theirs, "content": _text(f"internal_error: {text}")}


def missing_imports(seen: Seen) -> Outcome:
    if seen.case.raises != "ModuleNotFoundError" or (message := _called(seen)) is None:
        return seen.theirs
    return {**seen.theirs, "content": _text(f"dependency_error: {message}")}


def stop_iteration(seen: Seen) -> Outcome:
    if seen.case.raises != "StopIteration" or "async def" in seen.case.source or _error(seen.theirs) is None:
        return seen.theirs
    return {**seen.theirs, "content": _text("internal_error: StopIteration")}


def grouped_errors(seen: Seen) -> Outcome:
    if _called(seen) != "several (1 sub-exception)" or "[ToolError('inner')]" not in seen.case.source:
        return seen.theirs
    return {**seen.theirs, "content": _text("inner")}


def not_found_is_said(seen: Seen) -> Outcome:
    if seen.case.raises != "NotFoundError" or _called(seen) is None:
        return seen.theirs
    return {**seen.theirs, "content": _text(str(_called(seen)))}


def objects_as_they_are(seen: Seen) -> Outcome:
    structured = seen.theirs.get("structuredContent") or {}
    inner = structured.get("result")
    if list(structured) != ["result"] or not isinstance(inner, dict) or _texts(seen.theirs) != [as_json(inner)]:
        return seen.theirs
    return {**seen.theirs, "structuredContent": inner}


def values_are_structured(seen: Seen) -> Outcome:
    texts = _texts(seen.theirs)
    if seen.theirs.get("isError", True) or "structuredContent" in seen.theirs or texts is None or "ToolResult(" in returned(seen):
        return seen.theirs
    if not texts:
        return {**seen.theirs, "structuredContent": {"result": [] if _is_list(seen) else None}}
    if (value := _json(texts[0])) is not None and not isinstance(value, dict) and as_json(value) == texts[0]:
        # A text that looks like JSON is a text: the function's own value decides.
        if isinstance(_value(seen), str):
            value = texts[0]
        return {**seen.theirs, "structuredContent": {"result": value}}
    return {**seen.theirs, "structuredContent": {"result": texts[0]}}


def nothing_is_text(seen: Seen) -> Outcome:
    structured = seen.theirs.get("structuredContent")
    if seen.theirs.get("content") != [] or structured is None or structured.get("result", None) not in (None, []):
        return seen.theirs
    return {**seen.theirs, "content": _text(as_json(structured.get("result")))}


def numbers_as_returned(seen: Seen) -> Outcome:
    if returns(seen) not in ("float", "list[float]"):
        return seen.theirs
    value = _value(seen)
    if isinstance(value, (str, bool)) or seen.theirs.get("structuredContent") != {"result": value}:
        return seen.theirs
    return {**seen.theirs, "content": _text(as_json(value)), "structuredContent": {"result": value}}


def written_by_alias(seen: Seen) -> Outcome:
    names = {"from_": "from", "to": "till"}
    structured = seen.theirs.get("structuredContent") or {}
    if set(structured) != set(names):
        return seen.theirs
    written = {names[name]: value for name, value in structured.items()}
    return {**seen.theirs, "structuredContent": written, "content": _text(as_json(written))}


_MODELS = ("Point", "User", "Aliased", "Open", "Tree", "Measured", "Named", "Either", "Pair", "Options")


def _names_a_model(hint: str) -> bool:
    return any(re.search(rf"\b{model}\b", hint) for model in _MODELS)


def _unfit(seen: Seen, error: ValidationError) -> Outcome:
    found = error.errors(include_url=False)[0]
    where = ".".join(map(str, found["loc"])) or "the result"
    text = (
        f"output_type: the result does not fit the return annotation {returns(seen)}: {where}: {found['msg']}; "
        "return what the annotation says, or change it"
    )
    return {"isError": True, "content": _text(text), "told": seen.theirs["told"]}


def results_fit_their_model(seen: Seen) -> Outcome:
    hint, told = returns(seen), seen.theirs["told"]
    if not _names_a_model(hint):
        return seen.theirs
    adapter: TypeAdapter[Any] = TypeAdapter(meant(hint))
    try:
        value = adapter.validate_python(_value(seen), from_attributes=True, by_alias=True, by_name=True)
    except ValidationError as error:
        return _unfit(seen, error)
    written = adapter.dump_python(value, mode="json", by_alias=True)
    structured = written if isinstance(written, dict) else {"result": written}
    return {"isError": False, "content": _shown(written), "structuredContent": structured, "told": told}


def bytes_are_blocks(seen: Seen) -> Outcome:
    value = _value(seen)
    if value == [b"raw"]:
        return {**_one_block(seen, b"raw"), "structuredContent": {"result": [None]}}
    return _one_block(seen, value) if isinstance(value, (bytes, bytearray)) else seen.theirs


def _one_block(seen: Seen, value: bytes | bytearray) -> Outcome:
    data = base64.b64encode(value).decode()
    if value.startswith(b"\x89PNG"):
        block: Outcome = {"type": "image", "data": data, "mimeType": "image/png"}
    else:
        inner = {"uri": "tooldock://result/0", "mimeType": "application/octet-stream", "blob": data}
        block = {"type": "resource", "resource": inner}
    result = {"isError": False, "content": [block], "told": seen.theirs["told"]}
    return result if _texts(seen.theirs) is not None else seen.theirs


def bytes_inside(seen: Seen) -> Outcome:
    value = _value(seen)
    if type(value).__name__ == "Secretive":
        value = vars(value)
        if _is_utf8(value["hidden"]):
            return seen.theirs
    if not isinstance(value, dict) or not any(isinstance(item, bytes) for item in value.values()):
        return seen.theirs
    written = {key: base64.b64encode(item).decode() if isinstance(item, bytes) else item for key, item in value.items()}
    return {"isError": False, "content": _text(as_json(written)), "structuredContent": written, "told": seen.theirs["told"]}


def keys_as_json(seen: Seen) -> Outcome:
    names = {"None": "null", "1,2": "[1,2]"}
    structured = seen.theirs.get("structuredContent") or {}
    if seen.case.family != "value" or not names.keys() & structured.keys():
        return seen.theirs
    written = {names.get(key, key): value for key, value in structured.items()}
    return {**seen.theirs, "structuredContent": written, "content": _text(as_json(written))}


def sequences_are_lists(seen: Seen) -> Outcome:
    value = _value(seen)
    if type(value).__name__ not in ("range", "dict_keys") or not _is_lost(seen, repr(value)):
        return seen.theirs
    written = list(value)
    result = {"isError": False, "content": _text(as_json(written)), "structuredContent": {"result": written}}
    return {**result, "told": seen.theirs["told"]}


def results_fit_their_type(seen: Seen) -> Outcome:
    hint, value = returns(seen), _value(seen)
    if seen.case.family != "result" or not hint or _names_a_model(hint):
        return seen.theirs
    if hint in ("None", "list") or "Serializer" in hint:
        return seen.theirs  # no schema to fit, or one of the author's
    if "float" in hint and (value is None or value != value):
        return seen.theirs  # a number may be null
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(meant(hint))
        sent = to_jsonable_python(value)
    except (NameError, PydanticUserError, ValueError):
        return seen.theirs  # no schema to fit, or no JSON
    if jsonschema.Draft202012Validator(adapter.json_schema(mode="serialization")).is_valid(sent):
        return seen.theirs
    try:
        sent = to_jsonable_python(adapter.validate_python(value))
    except ValidationError as error:
        return _unfit(seen, error)
    structured = sent if isinstance(sent, dict) else {"result": sent}
    shown = {"content": _text(as_json(sent)), "structuredContent": structured}
    return {"isError": False, **shown, "told": seen.theirs["told"]}


def no_repr(seen: Seen) -> Outcome:
    names = {
        "Opaque()": "tooldock_tools.shapes.Opaque at $",
        "object()": "object at $",
        "[object()]": "object at $[0]",
        "{'a': object()}": "object at $.a",
        "len": "builtin_function_or_method at $",
        "Point": "pydantic._internal._model_construction.ModelMetaclass at $",
        "ValueError('v')": "ValueError at $",
        "types.SimpleNamespace(a=1)": "types.SimpleNamespace at $",
    }
    what = names.get(returned(seen))
    if what is None or not _is_lost(seen, "<", "v", "namespace(a=1)"):
        return seen.theirs
    return _failed(seen, f"internal_error: cannot turn {what} into JSON")


def iterators_are_kept(seen: Seen) -> Outcome:
    names = {"iter([1])": "list_iterator", "iter([1, 2])": "list_iterator", "map(str, [1])": "map"}
    what = names.get(returned(seen))
    if what is None or seen.theirs.get("structuredContent", {"result": []}) not in ({"result": []}, {"result": None}):
        return seen.theirs
    return _failed(seen, f"internal_error: cannot turn {what} at $ into JSON; return a list instead")


def broken_text(seen: Seen) -> Outcome:
    if "surrogates not allowed" not in seen.theirs.get("raised", ""):
        return seen.theirs
    result = {"isError": False, "content": _text("\ufffd"), "structuredContent": {"result": "\ufffd"}}
    return {**result, "told": seen.theirs["told"]}


def blocks_of_a_list(seen: Seen) -> Outcome:
    if not returned(seen).startswith("ToolResult(content=["):
        return seen.theirs
    items = [item for text in _texts(seen.theirs) or () for item in _json(text) or ()]
    return {**seen.theirs, "content": [block for item in items for block in _text(item if isinstance(item, str) else as_json(item))]}


def log_text(seen: Seen) -> Outcome:
    def change(kind: str, params: Any) -> list[Any]:
        data = params.get("data")
        if kind == "log" and isinstance(data, dict) and set(data) == {"msg", "extra"} and data["extra"] is None:
            params = {**params, "data": data["msg"]}
        return [kind, params]

    if not seen.theirs["told"]:
        return seen.theirs
    return {**seen.theirs, "told": [change(kind, params) for kind, params in seen.theirs["told"]]}


def _is_lost(seen: Seen, *shown: str) -> bool:
    """Whether FastMCP sends the `repr` or `str` of a value, which begins so, or cannot send it."""
    text = (_texts(seen.theirs) or [""])[0]
    return text.startswith("Could not serialize") or text.lstrip('["').startswith(shown)


def _failed(seen: Seen, text: str) -> Outcome:
    return {"isError": True, "content": _text(text), "told": seen.theirs["told"]}


def _text(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _shown(value: Any) -> list[dict[str, str]]:
    return _text(value if isinstance(value, str) else as_json(value))


def _texts(outcome: Outcome) -> list[str] | None:
    """The texts of the content, if it has nothing else."""
    blocks = outcome.get("content")
    if not isinstance(blocks, list) or not all(block.get("type") == "text" for block in blocks):
        return None
    return [block["text"] for block in blocks]


def _error(outcome: Outcome) -> str | None:
    texts = _texts(outcome)
    return texts[0] if outcome.get("isError") and texts and "refused" not in outcome else None


def _called(seen: Seen) -> str | None:
    """What the exception said, if FastMCP says that the call failed with one."""
    said, before = _error(seen.theirs), f"Error calling tool '{seen.case.name}': "
    return said.removeprefix(before) if said is not None and said.startswith(before) else None


def _value(seen: Seen) -> Any:
    """What the function returns; nothing anybody else returns where that is not known."""
    if seen.case.family not in ("value", "result"):
        return object()
    try:
        return meant(returned(seen))
    except Exception:
        return object()


def _is_list(seen: Seen) -> bool:
    return returned(seen) in ("[]", "()", "set()")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _without(outcome: Outcome, key: str) -> Outcome:
    return {name: value for name, value in outcome.items() if name != key}
