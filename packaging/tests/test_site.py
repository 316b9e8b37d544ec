"""The documentation as a site."""

import html
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from conftest import ROOT, program, run

SITE = ROOT / "target/docs-site/book"


@pytest.fixture(scope="module")
def site() -> list[Path]:
    run(".ci/docs-site", program("mdbook"))
    pages = [page for page in SITE.rglob("*.html") if page.name not in ("print.html", "toc.html", "404.html")]
    assert len(pages) > 30
    return pages


def test_each_page_of_docs_is_in_the_summary_once() -> None:
    summary = (ROOT / "docs/SUMMARY.md").read_text()
    listed = re.findall(r"\]\(([^)]+)\)", summary)
    assert len(set(listed)) == len(listed)
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"SUMMARY.md"}
    assert pages == {link for link in listed if "/" not in link}
    for link in listed:
        assert (ROOT / "docs" / link).is_file(), link


def test_links_of_the_site_lead_to_its_pages_and_their_headings(site: list[Path]) -> None:
    anchors = {page.resolve(): set(re.findall(r'\bid="([^"]+)"', page.read_text())) for page in site}
    broken = []
    for page in site:
        for link in re.findall(r'<a [^>]*href="([^"]+)"', page.read_text()):
            link = html.unescape(link)
            file, _, anchor = link.partition("#")
            target = (page.parent / unquote(file)).resolve() if file else page.resolve()
            # Sources of the program are no part of the site; tests/documentation.rs checks that they exist.
            if "://" in link or link.startswith("mailto:") or target.suffix != ".html" or target.name == "print.html":
                continue
            if target not in anchors or (anchor and unquote(anchor) not in anchors[target]):
                broken.append(f"{page.relative_to(SITE)}: {link}")
    assert not broken


def test_the_site_has_a_search(site: list[Path]) -> None:
    assert list(SITE.glob("searchindex*.js"))
