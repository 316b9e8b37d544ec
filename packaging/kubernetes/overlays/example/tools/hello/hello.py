from fastmcp.tools import tool


@tool
def say_hello(name: str) -> str:
    """Greet somebody by name."""
    return f"Hello, {name}!"
