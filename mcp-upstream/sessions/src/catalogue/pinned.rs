//! Pins of a server's lists: the definitions on each page are recorded, and those that an operator has not approved yet are
//! removed. `tooldock_workers::pins` contains the rules.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_base::config::PinMode;
use tooldock_workers::pins::{ListPage, NamespacePins, PageEntry, PinKind};

use super::mend::ListKind;
use tooldock_protocol::jsonrpc::spans::{self, MemberEdit};
use tooldock_protocol::jsonrpc::{self, all_entries};

/// Records the definitions on a page, as the server wrote them. Returns the page without hidden definitions; `None` if none is
/// hidden. `first` is true for the first page of a list.
pub(super) fn page(
    pins: &NamespacePins,
    kind: ListKind,
    page: &Bytes,
    first: bool,
) -> Option<Bytes> {
    let pinned = match kind {
        ListKind::Tools => PinKind::Tool,
        ListKind::Prompts => PinKind::Prompt,
        ListKind::Templates => PinKind::Template,
        ListKind::Resources => return None,
    };
    let mode = pins.mode();
    if mode == PinMode::Off {
        return None;
    }
    let Some((object, all, last)) = entries(kind, page) else {
        // The entries of the page cannot be determined and so not be compared, but a client might find some. So the page is
        // replaced by an empty one.
        return (mode == PinMode::Enforce).then(|| format!("{{{:?}:[]}}", kind.key()).into());
    };
    let name = |definition: &RawValue| {
        let name = jsonrpc::string(single(definition, kind.name())?)?;
        Some(Arc::from(&*name))
    };
    let judgement = pins.judge(&ListPage {
        kind: pinned,
        entries: all
            .iter()
            .map(|definition| PageEntry {
                name: name(definition),
                definition: definition.get(),
            })
            .collect(),
        first,
        last,
    });
    if judgement.iter().all(|shown| *shown) {
        return None;
    }
    let shown = all.iter().zip(&*judgement).filter(|(_, shown)| **shown);
    let shown: Vec<_> = shown.map(|(entry, _)| entry.get()).collect();
    let list = Cow::Owned(format!("[{}]", shown.join(",")));
    Some(spans::edit(object.get(), &[MemberEdit::Set(kind.key(), list)]).into())
}

/// Parses a page: its object, its entries, and whether it is the last page. Returns `None` if the entries are ambiguous.
fn entries(kind: ListKind, page: &Bytes) -> Option<(&RawValue, Vec<&RawValue>, bool)> {
    let object = spans::raw(page)?;
    let list = single(object, kind.key())?;
    let all = serde_json::from_str(list.get()).ok()?;
    let last = spans::member(object, "nextCursor").is_none_or(|next| next.get() == "null");
    Some((object, all, last))
}

/// The value of a key; `None` if the object contains the key several times or in different case, so that clients might read
/// another value.
fn single<'a>(object: &'a RawValue, key: &str) -> Option<&'a RawValue> {
    let all = all_entries(object)?;
    let mut alike = all.iter().filter(|(own, _)| own.eq_ignore_ascii_case(key));
    let (own, value) = alike.next()?;
    (**own == *key && alike.next().is_none()).then_some(*value)
}

#[cfg(test)]
mod tests {
    use tooldock_workers::pins::Pins;

    use super::*;

    fn pins(mode: PinMode) -> Arc<NamespacePins> {
        let pins = Pins::in_memory().of(&"git".parse().expect("a name"));
        pins.set_mode(mode);
        pins
    }

    fn shown(pins: &NamespacePins, kind: ListKind, text: &'static str) -> Option<String> {
        let page = page(pins, kind, &Bytes::from_static(text.as_bytes()), true)?;
        Some(String::from_utf8(page.to_vec()).expect("UTF-8"))
    }

    #[test]
    fn entries_that_are_not_approved_are_left_out_and_the_rest_keeps_its_bytes() {
        let pins = pins(PinMode::Enforce);
        let first = r#"{"tools":[{"name":"a", "n":1.50},{"name":"b"}]}"#;
        assert_eq!(shown(&pins, ListKind::Tools, first), None);
        let changed = r#"{"x":1,"tools":[{"name":"a", "n":1.50},{"name":"b","description":"y"},{"name":"c"}],"ttlMs":5}"#;
        assert_eq!(
            shown(&pins, ListKind::Tools, changed).as_deref(),
            Some(r#"{"x":1,"tools":[{"name":"a", "n":1.50}],"ttlMs":5}"#)
        );
    }

    #[test]
    fn prompts_and_templates_are_pinned_and_resources_are_not() {
        let pins = pins(PinMode::Enforce);
        for (kind, first, changed, left) in [
            (
                ListKind::Prompts,
                r#"{"prompts":[{"name":"a"}]}"#,
                r#"{"prompts":[{"name":"a","title":"x"}]}"#,
                Some(r#"{"prompts":[]}"#),
            ),
            (
                ListKind::Templates,
                r#"{"resourceTemplates":[{"uriTemplate":"a:{b}","name":"a"}]}"#,
                r#"{"resourceTemplates":[{"uriTemplate":"a:{b}","name":"c"}]}"#,
                Some(r#"{"resourceTemplates":[]}"#),
            ),
            (
                ListKind::Resources,
                r#"{"resources":[{"uri":"a:b","name":"a"}]}"#,
                r#"{"resources":[{"uri":"a:b","name":"c"}]}"#,
                None,
            ),
        ] {
            assert_eq!(shown(&pins, kind, first), None);
            assert_eq!(shown(&pins, kind, changed).as_deref(), left, "{changed}");
        }
    }

    #[test]
    fn a_page_whose_entries_cannot_be_told_shows_none() {
        for text in [
            r#"{"tools":[{"name":"a"}],"tools":[{"name":"b"}]}"#,
            r#"{"tools":[{"name":"a"}],"Tools":[{"name":"b"}]}"#,
            r#"{"tools":{"name":"a"}}"#,
            "{}",
            "[]",
        ] {
            let enforced = shown(&pins(PinMode::Enforce), ListKind::Tools, text);
            assert_eq!(enforced.as_deref(), Some(r#"{"tools":[]}"#), "{text}");
            assert_eq!(shown(&pins(PinMode::Warn), ListKind::Tools, text), None);
        }
        let twice = r#"{"tools":[{"name":"a","name":"b"},{"name":"c"}]}"#;
        assert_eq!(
            shown(&pins(PinMode::Enforce), ListKind::Tools, twice).as_deref(),
            Some(r#"{"tools":[{"name":"c"}]}"#)
        );
    }
}
