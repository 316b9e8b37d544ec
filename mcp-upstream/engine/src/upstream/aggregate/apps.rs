//! MCP Apps (extension `io.modelcontextprotocol/ui`, SEP-1865) of an aggregate's members: pages with a `ui://` URI that a client
//! shows beside a tool's result, and the tools that only such a page calls.
//!
//! - A `ui://` URI keeps its scheme, by which clients recognise a page; the prefix follows the scheme ([`super::names`]).
//! - `_meta.ui.resourceUri`, and the older flat key `_meta["ui/resourceUri"]`, name the published URI.
//! - Pages and app-only tools are not for the model, which neither sees nor activates them. Clients can always use them.

use serde_json::Value;
use serde_json::value::RawValue;
use tooldock_protocol::jsonrpc::spans::{self, MemberEdit};
use tooldock_protocol::jsonrpc::string;

use super::names;

/// Name of the extension in the capabilities of clients and servers.
pub(super) const EXTENSION: &str = "io.modelcontextprotocol/ui";
/// Declaration of the extension, a member of the capability `extensions`, with the media type of pages.
pub(super) const DECLARATION: &[u8] =
    br#""io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}"#;
/// Key of a page's URI in `_meta.ui`.
const URI_KEY: &str = "resourceUri";
/// Key of a page's URI directly in `_meta`, as clients and servers before SEP-1865 write it.
const FLAT_KEY: &str = "ui/resourceUri";

/// Returns true if a URI names a page.
pub(super) fn is_page(uri: &str) -> bool {
    uri.starts_with(names::UI_SCHEME)
}

/// Returns true if only pages call a tool: its `_meta.ui.visibility` is a list that does not contain `model`.
pub(super) fn is_app_only(tool: &RawValue) -> bool {
    let visibility = spans::member(tool, "_meta")
        .and_then(|meta| spans::member(meta, "ui"))
        .and_then(|ui| spans::member(ui, "visibility"));
    let list = visibility.and_then(|list| serde_json::from_str::<Vec<&RawValue>>(list.get()).ok());
    list.is_some_and(|list| {
        let mut words = list.into_iter().filter_map(string);
        !words.any(|word| word == "model")
    })
}

/// Returns true if a client declares the extension in its capabilities.
pub(super) fn shows_pages(capabilities: &RawValue) -> bool {
    let extensions = spans::member(capabilities, "extensions");
    extensions
        .and_then(|extensions| spans::member(extensions, EXTENSION))
        .is_some_and(|settings| settings.get() != "null")
}

/// Returns the URI of the page that a tool's `_meta` names; `None` if it names no page.
pub(super) fn page_of(tool: &RawValue) -> Option<String> {
    let meta = spans::member(tool, "_meta")?;
    let nested = spans::member(meta, "ui").and_then(|ui| spans::member(ui, URI_KEY));
    let uri = nested
        .or_else(|| spans::member(meta, FLAT_KEY))
        .and_then(string)?;
    is_page(&uri).then(|| uri.into())
}

/// Returns the edit of an object's `_meta` that replaces each URI of a page by its published URI; `None` if no URI changes.
/// `published`: returns the published URI of a page, or `None` to keep the URI.
pub(super) fn meta_edit(
    object: &RawValue,
    published: impl Fn(&str) -> Option<String>,
) -> Option<MemberEdit<'static>> {
    let published = |object: &RawValue, key: &str| {
        let own = spans::member(object, key).and_then(string)?;
        let published = is_page(&own).then(|| published(&own))??;
        (published != own).then(|| Value::from(published).to_string())
    };
    edit_of_uris(object, |object, key| {
        published(object, key).map(|uri| MemberEdit::Set(key, uri.into()))
    })
}

/// Returns a tool's definition without the URI of its page.
pub(super) fn without_page(definition: &str) -> String {
    let edit = spans::raw(definition.as_bytes()).and_then(|tool| {
        edit_of_uris(tool, |object, key| {
            spans::member(object, key).map(|_| MemberEdit::Remove(key))
        })
    });
    edit.map_or_else(
        || definition.to_owned(),
        |edit| spans::edit(definition, &[edit]),
    )
}

/// Returns the edit of an object's `_meta` in which each URI of a page is edited by `edit`, which gets the object and the key of
/// the URI; `None` if no URI is edited.
fn edit_of_uris(
    object: &RawValue,
    edit: impl Fn(&RawValue, &'static str) -> Option<MemberEdit<'static>>,
) -> Option<MemberEdit<'static>> {
    let meta = spans::member(object, "_meta")?;
    let mut edits = Vec::new();
    if let Some(ui) = spans::member(meta, "ui")
        && let Some(edit) = edit(ui, URI_KEY)
    {
        let edited = spans::edit(ui.get(), &[edit]);
        edits.push(MemberEdit::Set("ui", edited.into()));
    }
    edits.extend(edit(meta, FLAT_KEY));
    let edited = (!edits.is_empty()).then(|| spans::edit(meta.get(), &edits))?;
    Some(MemberEdit::Set("_meta", edited.into()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn raw(value: &Value) -> Box<RawValue> {
        RawValue::from_string(value.to_string()).expect("JSON")
    }

    #[test]
    fn a_tool_is_app_only_if_its_visibility_leaves_the_model_out() {
        for (visibility, expected) in [
            (json!(["app"]), true),
            (json!([]), true),
            (json!(["model", "app"]), false),
            (json!(["model"]), false),
            (json!("app"), false),
            (json!(null), false),
        ] {
            let tool = json!({ "name": "a", "_meta": { "ui": { "visibility": visibility } } });
            assert_eq!(is_app_only(&raw(&tool)), expected, "{tool}");
        }
        assert!(!is_app_only(&raw(&json!({ "name": "a" }))));
    }

    #[test]
    fn both_keys_of_a_page_name_its_published_uri_and_other_members_stay() {
        let tool = json!({ "name": "a", "_meta": {
            "ui": { "resourceUri": "ui://chart/view.html", "visibility": ["model"] },
            "ui/resourceUri": "ui://chart/view.html", "x": 1 } });
        let tool = raw(&tool);
        assert_eq!(page_of(&tool).as_deref(), Some("ui://chart/view.html"));
        let published = |own: &str| Some(own.replace("ui://", "ui://sales_"));
        let edit = meta_edit(&tool, published).expect("an edit");
        let edited: Value = serde_json::from_str(&spans::edit(tool.get(), &[edit])).expect("JSON");
        assert_eq!(
            edited["_meta"],
            json!({ "ui": { "resourceUri": "ui://sales_chart/view.html", "visibility": ["model"] },
                "ui/resourceUri": "ui://sales_chart/view.html", "x": 1 })
        );
        for other in [
            json!({ "name": "a" }),
            json!({ "_meta": { "ui": { "resourceUri": "https://a.example/" } } }),
            json!({ "_meta": { "ui": { "resourceUri": 7 } } }),
            json!({ "_meta": [] }),
        ] {
            assert!(meta_edit(&raw(&other), published).is_none(), "{other}");
        }
        let without: Value = serde_json::from_str(&without_page(tool.get())).expect("JSON");
        assert_eq!(
            without["_meta"],
            json!({ "ui": { "visibility": ["model"] }, "x": 1 })
        );
    }

    #[test]
    fn a_client_shows_pages_if_it_declares_the_extension() {
        let declared =
            json!({ "extensions": { EXTENSION: { "mimeTypes": ["text/html;profile=mcp-app"] } } });
        assert!(shows_pages(&raw(&declared)));
        assert!(!shows_pages(&raw(
            &json!({ "extensions": { EXTENSION: null } })
        )));
        assert!(!shows_pages(&raw(&json!({ "elicitation": {} }))));
    }
}
