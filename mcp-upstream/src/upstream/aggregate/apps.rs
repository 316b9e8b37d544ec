//! MCP Apps (extension `io.modelcontextprotocol/ui`, SEP-1865) of an aggregate's members: pages with a `ui://` URI that a client
//! shows beside a tool's result, and the tools that only such a page calls.
//!
//! - A `ui://` URI keeps its scheme, since clients recognise a page by it; the prefix follows the scheme ([`super::names`]).
//! - `_meta.ui.resourceUri`, and the older flat key `_meta["ui/resourceUri"]`, name the published URI.
//! - Pages and app-only tools are not for the model: it neither sees nor activates them, and they can always be used.

use serde_json::Value;
use serde_json::value::RawValue;

use super::names;
use crate::jsonrpc::spans::{self, MemberEdit};
use crate::jsonrpc::string;

/// Name of the extension in the capabilities of clients and servers.
pub(super) const EXTENSION: &str = "io.modelcontextprotocol/ui";
/// The extension as a member of the capability `extensions`, with the media type of pages.
pub(super) const DECLARATION: &[u8] =
    br#""io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}"#;
/// Key of a page's URI in `_meta` itself, as clients and servers before SEP-1865 write it.
const FLAT_KEY: &str = "ui/resourceUri";

/// Returns true if a URI is that of a page.
pub(super) fn is_page(uri: &str) -> bool {
    uri.starts_with(names::UI_SCHEME)
}

/// Returns true if a tool is called by pages only: its `_meta.ui.visibility` is a list that does not contain `model`.
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

/// The edit of an object's `_meta` that replaces the URI of a page by its published URI; `None` if `_meta` names no page.
pub(super) fn meta_edit(object: &RawValue, prefix: &str) -> Option<MemberEdit<'static>> {
    let meta = spans::member(object, "_meta")?;
    let mut edits = Vec::new();
    if let Some(ui) = spans::member(meta, "ui")
        && let Some(published) = published(ui, "resourceUri", prefix)
    {
        let edited = spans::edit(
            ui.get(),
            &[MemberEdit::Set("resourceUri", published.into())],
        );
        edits.push(MemberEdit::Set("ui", edited.into()));
    }
    if let Some(published) = published(meta, FLAT_KEY, prefix) {
        edits.push(MemberEdit::Set(FLAT_KEY, published.into()));
    }
    let edited = (!edits.is_empty()).then(|| spans::edit(meta.get(), &edits))?;
    Some(MemberEdit::Set("_meta", edited.into()))
}

/// The published form, as JSON, of the page's URI that a member of an object holds.
fn published(object: &RawValue, key: &str, prefix: &str) -> Option<String> {
    let own = spans::member(object, key).and_then(string)?;
    is_page(&own).then(|| Value::from(names::prefixed(prefix, &own)).to_string())
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
        let edit = meta_edit(&tool, "sales").expect("an edit");
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
            assert!(meta_edit(&raw(&other), "sales").is_none(), "{other}");
        }
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
