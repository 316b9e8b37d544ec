from fastmcp import Context
from fastmcp.tools import tool


@tool
async def echo_async(text: str) -> str:
    """Gives the text back."""
    return text


@tool
def echo_sync(text: str) -> str:
    """Gives the text back, from a thread."""
    return text


@tool
async def announce(ctx: Context, what: str = "tools") -> str:
    """Tells every open stream that the tools, prompts or resources have changed."""
    send = dict(
        tools=ctx.send_tool_list_changed,
        prompts=ctx.send_prompt_list_changed,
        resources=ctx.send_resource_list_changed,
    )
    await send[what]()
    return "announced"
