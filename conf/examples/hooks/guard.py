"""A hook as a tool of the gateway: refuses calls that would delete something, and hides such tools from lists.

Copy this file into a folder `tools/guard` of the data directory, and name the tool in the gateway's configuration:

    hooks:
      - { on: [call, list], namespaces: ["crm"], tool: guard.check }

The gateway calls the tool with the members of a request as arguments. What it returns is the answer.
"""

from typing import Any

from fastmcp.tools import tool


def deletes(name: str) -> bool:
    return name.startswith(("delete_", "drop_"))


@tool
def check(
    on: str,
    namespace: str,
    request_id: str,
    principal: str | None = None,
    tool: str | None = None,
    arguments: dict[str, Any] | None = None,
    tools: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Answers a hook's request."""
    if on == "call" and deletes(tool or ""):
        return {"refuse": f"{tool} deletes data, which needs a person: ask the operator of {namespace}"}
    if on == "list":
        return {"tools": [it for it in tools or [] if not deletes(it["name"])]}
    return {}
