"""Makes function specs out of an OpenAPI document and calls one, as two kinds of clients do.

`by_import` is how Open WebUI imports a tool server: references by their last word, parameters and the properties of the
body in one object, calls below the address that the document came from, no headers of parameters. `by_servers` is how
clients in the manner of mcpo and generated ones do it: every reference followed, calls below `servers`, parameters
where the document says.

Arguments: document URL, token, operation, arguments as JSON. Prints one JSON line with both results.
"""

import copy
import json
import re
import sys
from urllib.error import HTTPError
from urllib.parse import quote, urljoin, urlsplit, urlunsplit
from urllib.request import Request, urlopen

DOCUMENT, TOKEN, OPERATION, ARGUMENTS = sys.argv[1:]
FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def ask(url, body=None, headers=None):
    """The JSON of an answer. None for a refusal that wants a namespace."""
    request = Request(url, headers={"Authorization": f"Bearer {TOKEN}", "Accept": "application/json", **(headers or {})})
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    try:
        with urlopen(request, timeout=20) as response:
            return json.load(response)
    except HTTPError as error:
        refused = json.load(error)
        if refused["error"]["code"] == "namespace_required":
            return None
        raise SystemExit(f"{url}: {error.code} {refused}") from error


def operations(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def resolved(schema, components, seen=frozenset()):
    """A schema without references, as far as an import follows them; what contains itself ends as `{}`."""
    if not schema:
        return {}
    if "$ref" in schema:
        parts = schema["$ref"].strip("#/").split("/")
        if parts[-1] in seen:
            return {}
        found = components
        for part in parts[1:]:
            found = found.get(part, {})
        return resolved(found, components, seen | {parts[-1]})
    schema = copy.deepcopy(schema)
    for name, value in schema.get("properties", {}).items():
        schema["properties"][name] = resolved(value, components, seen)
    if "items" in schema:
        schema["items"] = resolved(schema["items"], components, seen)
    return schema


def imported(document):
    """A function spec for each operation."""
    specs = {}
    for _, _, operation in operations(document):
        name = operation["operationId"]
        assert FUNCTION_NAME.fullmatch(name) and name not in specs, name
        description = operation.get("description") or operation.get("summary")
        assert description, name
        properties, required = {}, []
        for parameter in operation.get("parameters", []):
            schema = parameter["schema"]
            properties[parameter["name"]] = {"type": schema["type"], "description": parameter.get("description", "")}
            if parameter.get("required"):
                required.append(parameter["name"])
        content = operation.get("requestBody", {}).get("content", {})
        body = resolved(content.get("application/json", {}).get("schema"), document["components"])
        properties.update(body.get("properties", {}))
        required.extend(body.get("required", []))
        assert set(required) <= set(properties), name
        specs[name] = {"description": description, "properties": properties, "required": required}
    return specs


def pointed_at(document, reference):
    """What a reference into the document points at."""
    assert reference.startswith("#/"), reference
    found = document
    for part in reference[2:].split("/"):
        part = part.replace("%25", "%").replace("~1", "/").replace("~0", "~")
        found = found[int(part)] if isinstance(found, list) else found[part]
    return found


def check_references(document, node):
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            pointed_at(document, node["$ref"])
        for value in node.values():
            check_references(document, value)
    elif isinstance(node, list):
        for value in node:
            check_references(document, value)


def call_by_import(document, arguments):
    address = urlunsplit((*urlsplit(DOCUMENT)[:3], "", "")).removesuffix("/openapi.json")
    [path] = [path for path, _, operation in operations(document) if operation["operationId"] == OPERATION]
    return ask(address + path, arguments)


def call_by_servers(document, arguments):
    [(path, method, operation)] = [it for it in operations(document) if it[2]["operationId"] == OPERATION]
    assert method == "post"
    headers = {}
    for parameter in operation.get("parameters", []):
        assert parameter["in"] == "header", parameter
        headers[parameter["name"]] = parameter["schema"]["default"]
    server = urljoin(DOCUMENT, quote(document["servers"][0]["url"], safe="/:%")).rstrip("/")
    return ask(server + path, arguments, headers)


document = ask(DOCUMENT)
assert document["openapi"].startswith("3.1."), document["openapi"]
[scheme] = document["security"]
assert all(document["components"]["securitySchemes"][name]["scheme"] == "bearer" for name in scheme)
check_references(document, document)
arguments = json.loads(ARGUMENTS)
spec = imported(document)[OPERATION]
assert set(arguments) <= set(spec["properties"]), spec
if OPERATION == "deliver":
    order = spec["properties"]["order"]["properties"]
    place = order["places"]["items"]["properties"]
    assert place["city"]["description"] == "Where to" and place["kind"]["enum"] == ["home", "work"], spec
    assert order["part"]["properties"]["name"]["type"] == "string", spec
print(json.dumps({
    "by_import": call_by_import(document, arguments),
    "by_servers": call_by_servers(document, arguments),
}))
