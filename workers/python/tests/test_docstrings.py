"""Parameter sections of docstrings become descriptions of parameters, in the three styles people write."""

import pytest
from app.docstrings import parse

GOOGLE = """Adds.

More text: here.

Args:
    a: First.
    b (int, optional): Second one
        goes on.
    **more: Others.

Returns:
    The sum.
"""
NUMPY = """Adds.

More text: here.

Parameters
----------
a : int
    First.
b : int, optional
    Second one
    goes on.
**more
    Others.

Returns
-------
int
    The sum.
"""
SPHINX = """Adds.

More text: here.

:param a: First.
:param int b: Second one
    goes on.
:type a: int
:param more: Others.
:returns: The sum.
:raises ValueError: never
"""


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_the_sections_of_each_style_are_read(doc):
    description, parameters = parse(doc)
    assert description == "Adds.\n\nMore text: here."
    assert parameters == {"a": "First.", "b": "Second one\ngoes on.", "more": "Others."}


@pytest.mark.parametrize("doc", ["", "Only text.", "Text: with a colon\nArgs: inline", "A table\n-------\nrow: 1"])
def test_a_docstring_without_sections_is_all_description(doc):
    assert parse(doc) == (doc, {})


def test_parameters_are_described_in_schemas_unless_the_author_said_more(plain_worker):
    plain_worker.write(
        "t.py",
        '''
        from typing import Annotated
        from fastmcp.tools import tool
        from fastmcp.prompts import prompt

        @tool
        def plain(a: int, b: Annotated[str, "mine"] = "x", c: float | None = None):
            """Does it.

            Args:
                a: How many.
                b: Not this.
                d: There is none.
            """

        @tool(description="Given.")
        def given(a: int):
            """Not this.

            :param a: How many.
            """

        @tool(input_schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
        def raw(a):
            """Args:
                a: Not this.
            """

        class Callable:
            """An object."""
            __name__ = "callable"
            def __call__(self, a: int):
                """Inner.

                Args:
                    a: Of the method.
                """
        tool(Callable())

        @prompt
        def ask(topic: str):
            """Asks.

            Args:
                topic: What about.
            """
        ''',
    ).start()
    tool = plain_worker.tool("plain")
    assert tool["description"] == "Does it."
    assert tool["inputSchema"]["properties"] == {
        "a": {"type": "integer", "description": "How many."},
        "b": {"type": "string", "description": "mine", "default": "x"},
        "c": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
    }
    assert plain_worker.tool("given")["description"] == "Given."
    assert plain_worker.tool("given")["inputSchema"]["properties"]["a"]["description"] == "How many."
    assert plain_worker.tool("raw")["inputSchema"]["properties"] == {"a": {"type": "integer"}}
    assert plain_worker.tool("callable")["description"] == "An object."
    assert plain_worker.tool("callable")["inputSchema"]["properties"]["a"]["description"] == "Of the method."
    (asking,) = plain_worker.ready["prompts"]
    assert asking["definition"]["description"] == "Asks."
    assert asking["definition"]["arguments"] == [{"name": "topic", "description": "What about.", "required": True}]
