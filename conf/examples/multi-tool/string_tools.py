import re
import unicodedata
from typing import Annotated

from fastmcp.tools import tool
from pydantic import Field


@tool
def count_words(text: str) -> dict[str, int]:
    """Count the characters, words and lines of a text."""
    return {"characters": len(text), "words": len(text.split()), "lines": len(text.splitlines())}


@tool
def slugify(
    text: str,
    max_length: Annotated[int, Field(ge=1, le=200, description="Longest slug to return.")] = 80,
) -> str:
    """Turn a text into a slug for URLs: lower case, ASCII, words joined by hyphens."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    slug = re.sub(r"[^a-z0-9]+", "-", ascii_text.lower()).strip("-")
    return slug[:max_length].rstrip("-")


@tool
def reverse(text: str) -> str:
    """Reverse a text."""
    return text[::-1]
