from fastmcp import Context
from fastmcp.tools import tool


@tool
async def tell(text: str, ctx: Context) -> str:
    """Says the text often."""
    for _ in range(20):
        await ctx.info(text)
    return text
