"""URI templates of RFC 6570, as far as FastMCP has them: `{name}`, `{name*}`, `{?a,b}`, `{?list*}`.

`{name}` is one segment of the path, `{name*}` one or more; `{?a,b}` are parts of the query that may be absent, in any
order, each a list with `*`. Values are percent-decoded. A `-` in a name stands for the `_` of the parameter. What
else RFC 6570 has (`{+x}`, `{#x}`, `{.x}`, `{/x}`, `{;x}`, `{&x}`, `{x:3}`) is refused. So are several `{name*}` and
more than two placeholders between two slashes: matching them could take time that grows with a power of the URI's
length.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote, unquote_plus

MAX_URI = 2 * 1024
"""Characters of a URI somebody asks for; what is longer is no resource of ours."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
_PART = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*")
_TRIPLET = re.compile(r"%[0-9A-Fa-f]{2}")
_RESERVED = ":/?#[]@!$&'()*+,;="


class BadTemplate(Exception):
    """The text is no URI or template; the message says why."""


class UriTemplate:
    """One template; without placeholders it matches itself alone."""

    def __init__(self, text: str) -> None:
        if not _SCHEME.match(text):
            raise BadTemplate("a URI begins with a scheme, like data://settings")
        if len(text) > MAX_URI or any(character < " " for character in text):
            raise BadTemplate("the URI is too long or has control characters")
        self.text = text
        self.path_names: list[str] = []
        self.query_names: dict[str, bool] = {}
        """Name in the query → whether it is a list."""
        self._parameters: dict[str, str] = {}
        pattern, position = "", 0
        for part in _PART.finditer(text):
            pattern += _literal(text[position : part.start()]) + self._expression(part.group(1))
            position = part.end()
            if self.query_names and position < len(text):
                raise BadTemplate("{?…} stands at the end")
        self._pattern = re.compile(pattern + _literal(text[position:]))
        self._keeps_fragment = "#" in text
        if self.query_names and "?" in _PART.sub("", text):
            raise BadTemplate("a ? beside {?…}")
        if text.count("*}") > 1 + sum(self.query_names.values()):
            raise BadTemplate("more than one {name*}")
        if any(len(_PART.findall(segment)) > 2 for segment in re.sub(r"\{\?[^{}]*\}", "", text).split("/")):
            raise BadTemplate("more than two placeholders between two slashes")

    @property
    def names(self) -> list[str]:
        """The parameters, in the order of the template."""
        return [*self.path_names, *(self._parameters[name] for name in self.query_names)]

    def match(self, uri: str) -> dict[str, Any] | None:
        """The parameters of a URI that fits, None for others."""
        if len(uri) > MAX_URI:
            return None
        if not self._keeps_fragment:
            uri = uri.partition("#")[0]
        query = ""
        if self.query_names:
            uri, _, query = uri.partition("?")
        found = self._pattern.fullmatch(uri)
        if found is None:
            return None
        values: dict[str, Any] = {name: unquote(text) for name, text in found.groupdict().items()}
        for pair in query.split("&") if query else ():
            name, _, text = pair.partition("=")
            name = unquote_plus(name)
            if name not in self.query_names:
                continue
            parameter, text = self._parameters[name], unquote_plus(text)
            if self.query_names[name]:
                values.setdefault(parameter, []).append(text)
            else:
                values.setdefault(parameter, text)
        return values

    def _expression(self, expression: str) -> str:
        if expression.startswith("?"):
            for name in expression[1:].split(","):
                name = name.strip()
                bare = name.removesuffix("*")
                self._parameters[bare] = self._parameter(bare)
                self.query_names[bare] = name.endswith("*")
            return ""
        parameter = self._parameter(expression.removesuffix("*"))
        self.path_names.append(parameter)
        return f"(?P<{parameter}>.+)" if expression.endswith("*") else f"(?P<{parameter}>[^/?#]+)"

    def _parameter(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise BadTemplate(f"{{{name}}} is no placeholder: {{name}}, {{name*}} and {{?a,b}} are")
        parameter = name.replace("-", "_")
        if parameter in self.path_names or parameter in self._parameters.values():
            raise BadTemplate(f"{{{name}}} is there twice")
        return parameter


def has_placeholders(text: str) -> bool:
    """Whether the URI is a template."""
    return "{" in text


def _literal(text: str) -> str:
    """Matches the text as written or percent-encoded: clients send either."""
    if "{" in text or "}" in text:
        raise BadTemplate("a brace without its other half")
    pattern, position = "", 0
    for triplet in _TRIPLET.finditer(text):
        pattern += _characters(text[position : triplet.start()]) + f"(?i:{re.escape(triplet.group())})"
        position = triplet.end()
    return pattern + _characters(text[position:])


def _characters(text: str) -> str:
    pattern = ""
    for character in text:
        encoded = quote(character, safe=_RESERVED)
        plain = re.escape(character)
        pattern += plain if encoded == character else f"(?:{plain}|(?i:{re.escape(encoded)}))"
    return pattern
