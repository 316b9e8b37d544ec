"""Sales as a page beside the chat (MCP Apps): a chart, and a form that asks for another year."""

from pathlib import Path

from fastmcp.apps import AppConfig
from fastmcp.resources import resource
from fastmcp.tools import tool

PAGE = "ui://sales/page.html"
SALES = {2025: [12, 19, 14, 22], 2026: [17, 21, 25, 30]}


@tool(app=AppConfig(resource_uri=PAGE))
def show_sales(year: int = 2026) -> dict:
    """Shows the sales of a year by quarter, in thousands."""
    return sales(year)


@tool(app=AppConfig(resource_uri=PAGE, visibility=["app"]))
def sales_of(year: int) -> dict:
    """Returns the sales of a year. Only the page calls this."""
    return sales(year)


@resource(PAGE, app=AppConfig(prefers_border=True))
def page() -> str:
    """Returns the page. It loads nothing from other hosts."""
    return Path(__file__).with_name("page.html").read_text()


def sales(year: int) -> dict:
    return {"year": year, "quarters": SALES.get(year, [])}
