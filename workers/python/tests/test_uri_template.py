"""URI templates: what they match, what they give, what they refuse."""

from __future__ import annotations

import time

import pytest

from app.uri_template import BadTemplate, UriTemplate


@pytest.mark.parametrize(
    ("template", "uri", "values"),
    [
        ("data://{id}", "data://5", {"id": "5"}),
        ("data://{id}", "data://a%2Fb%20c", {"id": "a/b c"}),
        ("data://{id}", "data://a/b", None),
        ("data://{id}", "data://", None),
        ("data://{id}", "data://x#part", {"id": "x"}),
        ("data://{id}", "data://x?y=1", None),
        ("data://{user-id}/x", "data://7/x", {"user_id": "7"}),
        ("file:///{path*}", "file:///a/b/c.txt", {"path": "a/b/c.txt"}),
        ("file:///{path*}/end", "file:///a/b/end", {"path": "a/b"}),
        ("x://{a}.{b}", "x://1.2.3", {"a": "1.2", "b": "3"}),
        ("x://q{?a,b}", "x://q", {}),
        ("x://q{?a,b}", "x://q?b=2&a=1&c=3&a=9", {"a": "1", "b": "2"}),
        ("x://q{?a,b}", "x://q?a=&b", {"a": "", "b": ""}),
        ("x://q{?t*}", "x://q?t=1&t=a+b%26", {"t": ["1", "a b&"]}),
        ("x://{id}{?a}", "x://5?a=1", {"id": "5", "a": "1"}),
        ("db://t?id={id}", "db://t?id=5", {"id": "5"}),
        ("x://café/{id}", "x://caf%c3%A9/1", {"id": "1"}),
        ("x://café/{id}", "x://café/1", {"id": "1"}),
        ("x://a b/{id}", "x://a%20b/1", {"id": "1"}),
        ("X://{id}", "x://5", None),
        ("x://{id}", "x://" + "y" * 3000, None),
    ],
)
def test_match(template, uri, values):
    assert UriTemplate(template).match(uri) == values


@pytest.mark.parametrize(
    "template",
    [
        "no-scheme/{x}",
        "x://{",
        "x://}",
        "x://{}",
        "x://{+x}",
        "x://{/x}",
        "x://{x:3}",
        "x://{x,y}",
        "x://{x}/{x}",
        "x://{x}{?x}",
        "x://{?}",
        "x://{?a}/b",
        "x://y?z=1{?a}",
        "x://{a*}/{b*}",
        "x://{a}{b}{c}",
        "x://\n{a}",
    ],
)
def test_what_is_no_template_is_refused(template):
    with pytest.raises(BadTemplate):
        UriTemplate(template)


@pytest.mark.parametrize("template", ["x://{a*}/{b}-{c}/z", "x://{a}-{b}/{c*}-{d}", "x://{a*}-{b}"])
@pytest.mark.parametrize("character", ["-", "/", "/-"])
def test_no_uri_takes_long_to_match(template, character):
    uri = ("x://" + character * 2000)[:2048]
    started = time.process_time()
    UriTemplate(template).match(uri)
    assert time.process_time() - started < 2
