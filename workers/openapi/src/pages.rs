//! Hints for models about further pages of a list: the parameters that select a page, for a tool's description, and the arguments
//! of the next page, for a result. The next page is found in a header `Link`, or in a member of the response such as
//! `next_cursor`.

use http::HeaderMap;
use http::header::LINK;
use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::parameter::{Parameter, Place};

/// Names of query parameters that select a page, in the spelling that [`normalized`] returns.
const SELECTORS: [&str; 17] = [
    "page",
    "pagenumber",
    "pageno",
    "pagetoken",
    "nextpagetoken",
    "nexttoken",
    "cursor",
    "nextcursor",
    "pagecursor",
    "startcursor",
    "after",
    "startingafter",
    "offset",
    "start",
    "startindex",
    "skip",
    "continuationtoken",
];
/// Members of a response that contain the position of the next page, with the parameters that take this position. Both are
/// [`normalized`] names; the first match counts.
const CURSORS: [(&str, &[&str]); 9] = [
    (
        "nextcursor",
        &["cursor", "nextcursor", "pagecursor", "startcursor", "after"],
    ),
    ("nextpagetoken", &["pagetoken", "nextpagetoken", "cursor"]),
    ("nextpage", &["page", "pagenumber", "pagetoken"]),
    ("nextoffset", &["offset", "skip"]),
    ("cursor", &["cursor"]),
    ("next", &["cursor", "after", "page", "startingafter"]),
    ("nexttoken", &["nexttoken", "pagetoken"]),
    ("continuationtoken", &["continuationtoken"]),
    ("endcursor", &["after", "cursor"]),
];
/// Members of a response that may contain the members of [`CURSORS`], as [`normalized`] names.
const ENVELOPES: [&str; 7] = [
    "meta",
    "paging",
    "pagination",
    "pageinfo",
    "links",
    "responsemetadata",
    "cursors",
];

/// Returns the query parameters that select a page.
pub(crate) fn selectors(parameters: &[Parameter]) -> impl Iterator<Item = &Parameter> {
    let is_selector =
        |it: &&Parameter| it.place == Place::Query && SELECTORS.contains(&&*normalized(&it.name));
    parameters.iter().filter(is_selector)
}

/// Returns a sentence with the arguments for the next page; `None` if the response has no further page, or no parameter of the
/// operation selects it.
pub(crate) fn next(
    parameters: &[Parameter],
    headers: &HeaderMap,
    body: Option<&Value>,
) -> Option<String> {
    let arguments = linked(parameters, headers).or_else(|| named(parameters, body?))?;
    Some(format!(
        "There are more results: call this tool again with {arguments}."
    ))
}

/// Returns the arguments for the next page from a header `Link` with `rel="next"`.
fn linked(parameters: &[Parameter], headers: &HeaderMap) -> Option<String> {
    let links = headers
        .get_all(LINK)
        .into_iter()
        .filter_map(|it| it.to_str().ok());
    // The header is divided where a URL begins, since URLs may contain commas.
    let next = links
        .flat_map(|it| it.split('<').skip(1))
        .find_map(|link| {
            let (url, rest) = link.split_once('>')?;
            let is_next = rest
                .split([';', ','])
                .any(|it| matches!(it.trim(), "rel=\"next\"" | "rel=next"));
            is_next.then_some(url)
        })?;
    of_url(parameters, next)
}

/// Returns the arguments in the query of a URL. Only parameters that select a page are read; the others stay as in the call
/// before.
fn of_url(parameters: &[Parameter], url: &str) -> Option<String> {
    let query = url.split_once('?')?.1;
    let query = query.split('#').next()?;
    let decoded = |text: &str| {
        let text = text.replace('+', " ");
        percent_decode_str(&text)
            .decode_utf8()
            .ok()
            .map(|it| it.into_owned())
    };
    let pairs = query.split('&').filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let name = decoded(name)?;
        let parameter = selectors(parameters).find(|it| it.name == name)?;
        Some(argument(parameter, &Value::from(decoded(value)?)))
    });
    let pairs: Vec<_> = pairs.collect();
    (!pairs.is_empty()).then(|| pairs.join(", "))
}

/// Returns the argument for the next page from a member of the body such as `next_cursor`.
fn named(parameters: &[Parameter], body: &Value) -> Option<String> {
    let members = body.as_object()?;
    let inner = members
        .iter()
        .filter(|(key, _)| ENVELOPES.contains(&&*normalized(key)));
    let inner = inner.filter_map(|(_, it)| it.as_object()).flatten();
    let all: Vec<_> = inner.chain(members).collect();
    CURSORS.iter().find_map(|(member, wanted)| {
        let found = all
            .iter()
            .find(|(key, it)| normalized(key) == *member && is_position(it));
        let value = found?.1;
        if let Some(url) = value.as_str().filter(|it| it.contains('?')) {
            return of_url(parameters, url);
        }
        let parameter = wanted
            .iter()
            .find_map(|wanted| selectors(parameters).find(|it| normalized(&it.name) == *wanted))?;
        Some(argument(parameter, value))
    })
}

/// Returns an argument with its value as JSON, such as `cursor="abc"`.
fn argument(parameter: &Parameter, value: &Value) -> String {
    format!("{}={value}", parameter.argument)
}

/// Returns true for a value that can be the position of a page.
fn is_position(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.is_empty() && text.len() <= 4096,
        Value::Number(_) => true,
        _ => false,
    }
}

/// Returns the ASCII letters and digits of a name, in lower case.
fn normalized(name: &str) -> String {
    let kept = name.chars().filter(char::is_ascii_alphanumeric);
    kept.map(|c| c.to_ascii_lowercase()).collect()
}
