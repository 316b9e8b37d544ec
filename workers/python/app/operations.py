"""The requests beside `tools.call`, `cancel` and `answer`: each looks something up and answers, or begins a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from . import completion, contents, failures, forks, frames, jsontext, messages, skills
from .resources import Resource

if TYPE_CHECKING:
    from .connection import Connection

Operation = Callable[["Connection", bytes, dict[str, Any]], None]


def ping(connection: Connection, request_id: bytes, request: dict[str, Any]) -> None:
    connection.reply(request_id, {"pong": True})


def list_tools(connection: Connection, request_id: bytes, request: dict[str, Any]) -> None:
    connection.reply(request_id, [tool.public for tool in connection.server.loaded.tools.values()])


def get_schema(connection: Connection, request_id: bytes, request: dict[str, Any]) -> None:
    name = request.get("tool")
    tool = connection.server.loaded.tools.get(name) if isinstance(name, str) else None
    if tool is None:
        connection.send(frames.unknown(request_id, "tool", name))
        return
    wanted = ("name", "inputSchema", "outputSchema")
    connection.reply(request_id, {key: tool.public[key] for key in wanted if key in tool.public})


def shutdown(connection: Connection, request_id: bytes, request: dict[str, Any]) -> None:
    connection.reply(request_id, {"shutdown": True})
    connection.server.stop()


def read_resource(connection: Connection, request_id: bytes, request: dict[str, Any]) -> None:
    """Reads the resource of that URI, or else the first template that fits."""
    uri = request.get("uri")
    if not isinstance(uri, str):
        connection.send(frames.unknown(request_id, "resource", uri))
        return
    try:
        found = _find(connection, uri)
    except BaseException as error:  # validators of the resource's author run here, too
        forks.leave_if_child()
        connection.send(frames.failure(request_id, *failures.of_arguments("the resource", error)))
        return
    if found is None:
        connection.send(frames.unknown(request_id, "resource", uri))
        return
    resource, arguments = found
    encode = partial(
        contents.encode, uri=uri, mime_type=resource.mime_type, ttl_ms=resource.ttl_ms, ui=resource.ui
    )
    connection.begin(request_id, resource, arguments, request, encode)


def _find(connection: Connection, uri: str) -> tuple[Resource, dict[str, Any]] | None:
    loaded = connection.server.loaded
    resource = loaded.resources.get(uri)
    if resource is not None:
        return resource, {}
    for template in loaded.templates.values():
        values = template.template.match(uri) if template.template is not None else None
        if values is None or template.security is not None and template.security.validate(values) is not None:
            continue
        try:
            return template, template.validate(values)
        except ValueError:
            # A part of the URI is not of its parameter's type: then this is no resource of this template.
            continue
    return None


def get_prompt(connection: Connection, request_id: bytes, request: dict[str, Any]) -> None:
    name = request.get("prompt")
    prompt = connection.server.loaded.prompts.get(name) if isinstance(name, str) else None
    if prompt is None:
        connection.send(frames.unknown(request_id, "prompt", name))
        return
    given = request.get("arguments")
    try:
        arguments = prompt.validate({} if given is None else given)
    except BaseException as error:  # validators of the prompt's author run here, too
        forks.leave_if_child()
        connection.send(frames.failure(request_id, *failures.of_arguments(prompt.name, error)))
        return
    encode = partial(messages.encode, description=prompt.description)
    connection.begin(request_id, prompt, arguments, request, encode)


def complete(connection: Connection, request_id: bytes, request: dict[str, Any]) -> None:
    """Completes an argument of a prompt or of a resource template."""
    loaded = connection.server.loaded
    params = _object(request.get("params"))
    reference, argument = _object(params.get("ref")), _object(params.get("argument"))
    kind, name, typed = reference.get("type"), argument.get("name"), argument.get("value")
    subject: Any = None
    if kind == "ref/prompt" and isinstance(wanted := reference.get("name"), str):
        subject = loaded.prompts.get(wanted)
    elif kind == "ref/resource" and isinstance(wanted := reference.get("uri"), str):
        subject = loaded.templates.get(wanted) or loaded.resources.get(wanted)
    if subject is None:
        message = "ref is neither a prompt nor a resource template of this server"
        connection.send(frames.failure(request_id, "invalid_arguments", message))
        return
    if not isinstance(name, str) or not isinstance(typed, str):
        message = "argument needs a name and a value, both text"
        connection.send(frames.failure(request_id, "invalid_arguments", message))
        return
    completer = subject.completers.get(name)
    if completer is None:
        connection.reply(request_id, {"completion": completion.answer([])})
    elif isinstance(completer, list):
        connection.reply(request_id, {"completion": completion.matching(completer, typed)})
    else:
        others = _object(_object(params.get("context")).get("arguments"))
        target = completion.completion(subject.name, completer, typed, others)
        connection.begin(request_id, target, {}, request, completion.encode)


def list_skills(connection: Connection, request_id: bytes, request: dict[str, Any]) -> None:
    """Describes all skills, or the skill of that URI."""
    found, uri = connection.server.loaded.skills, request.get("uri")
    if uri is not None and (not isinstance(uri, str) or uri not in found):
        connection.send(frames.failure(request_id, "invalid_arguments", "uri is the SKILL.md of no skill of this server"))
        return
    wanted = list(found.values()) if uri is None else [found[uri]]
    target = completion.Completion("skills", partial(skills.entries, wanted), False)
    connection.begin(request_id, target, {}, request, _plain)


def _plain(value: Any) -> tuple[bytes, bytes | None]:
    return jsontext.dumps_any(value), None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


OPERATIONS: dict[str, Operation] = {
    "ping": ping,
    "tools.list": list_tools,
    "tools.get_schema": get_schema,
    "resources.read": read_resource,
    "prompts.get": get_prompt,
    "completion.complete": complete,
    "skills.list": list_skills,
    "shutdown": shutdown,
}
