from fastmcp.tools import tool


@tool
def reverse(text: str) -> str:
    """Reverse a text."""
    return text[::-1]


@tool
def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())
