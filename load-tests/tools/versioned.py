from fastmcp.tools import tool


@tool
async def echo_async(text: str) -> str:
    """Gives the text back."""
    return text


@tool
async def version(text: str) -> str:
    """Which code answers."""
    return "version VERSION of the code"
