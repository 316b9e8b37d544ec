import asyncio
from fastmcp.tools import tool


@tool
async def wait(text: str) -> str:
    """Gives the text back after a while."""
    await asyncio.sleep(0.3)
    return text
