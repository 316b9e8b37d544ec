//! Corrects ("mends") lists of servers for strict clients.
//!
//! Many clients check a complete list against the schema of MCP, and refuse the list if a single entry is invalid. So a page is
//! corrected where that does not change its meaning. Members that are `null` or of a wrong type are removed. An `inputSchema`
//! gets `type: object`, since arguments are an object in every revision. An entry without a usable name is removed, and so is a
//! tool whose schema allows no object. All other bytes stay unchanged.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::value::RawValue;
use tooldock_protocol::jsonrpc::all_entries;
use tooldock_protocol::jsonrpc::spans::{self, MemberEdit};
use tooldock_protocol::version::Era;

use super::cursor;

mod keywords;
mod schema;

/// Maximum number of different corrections that are recorded for a page, and for a server. Further corrections are made, but
/// neither logged nor shown.
pub(super) const MENDS_MAX: usize = 1_000;
/// Maximum length of an entry's name in reports, in characters. Longer names are cut.
const NAME_MAX: usize = 64;

/// The kind of a list in MCP, by the kind of its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ListKind {
    /// List of tools (`tools/list`).
    Tools,
    /// List of resources (`resources/list`).
    Resources,
    /// List of resource templates (`resources/templates/list`).
    Templates,
    /// List of prompts (`prompts/list`).
    Prompts,
}

/// A correction of one entry of a page, or of the complete page if `entry` is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mend {
    /// Shortened name of the entry, or its position in the list if it has no name.
    pub(super) entry: Option<String>,
    /// True if the entry was removed from the list; false if it was corrected.
    pub(super) left_out: bool,
    /// Description of the faults. Reports write it after the entry's name.
    pub(super) what: String,
}

/// A corrected definition, and a description of its faults.
pub(crate) type MendedEntry = (String, String);

impl ListKind {
    /// The kind of list that a method requests; `None` if it is not a list method.
    pub fn of(method: &str) -> Option<Self> {
        Some(match method {
            "tools/list" => Self::Tools,
            "resources/list" => Self::Resources,
            "resources/templates/list" => Self::Templates,
            "prompts/list" => Self::Prompts,
            _ => return None,
        })
    }

    /// The method that requests the list.
    pub fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
            Self::Prompts => "prompts/list",
        }
    }

    /// Key of the member that contains the entries in a result.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
            Self::Prompts => "prompts",
        }
    }

    /// Key of the member that identifies an entry: its name, its URI, or its URI template.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }

    fn fields(self) -> &'static [Field] {
        match self {
            Self::Tools => &TOOL,
            Self::Resources => &RESOURCE,
            Self::Templates => &TEMPLATE,
            Self::Prompts => &PROMPT,
        }
    }
}

/// An optional member of an object: its key, and the required form of its value.
type Field = (&'static str, Shape);

/// The form that the value of a member must have.
#[derive(Clone, Copy)]
enum Shape {
    Text,
    Flag,
    /// The value must be an integer of at least 0.
    Size,
    /// The value must be a number from 0 to 1.
    Share,
    /// The value must be one of these strings.
    Word(&'static [&'static str]),
    /// The value must be a list of strings.
    Texts,
    /// The value must be a list of these strings.
    Words(&'static [&'static str]),
    /// The value must be an object. It may have these optional members, and unknown ones.
    Object(&'static [Field]),
    /// The value must be a list of objects. Each must have a string under this key, and may have these optional members.
    Objects(&'static str, &'static [Field]),
}

const META: Field = ("_meta", Shape::Object(&[]));
const TITLE: Field = ("title", Shape::Text);
const DESCRIPTION: Field = ("description", Shape::Text);
const MEDIA_TYPE: Field = ("mimeType", Shape::Text);
const ICONS: Field = (
    "icons",
    Shape::Objects(
        "src",
        &[
            MEDIA_TYPE,
            ("sizes", Shape::Texts),
            ("theme", Shape::Word(&["light", "dark"])),
        ],
    ),
);
const AUDIENCE: Field = (
    "annotations",
    Shape::Object(&[
        ("audience", Shape::Words(&["user", "assistant"])),
        ("priority", Shape::Share),
        ("lastModified", Shape::Text),
    ]),
);
const TOOL: [Field; 6] = [
    TITLE,
    DESCRIPTION,
    (
        "annotations",
        Shape::Object(&[
            TITLE,
            ("readOnlyHint", Shape::Flag),
            ("destructiveHint", Shape::Flag),
            ("idempotentHint", Shape::Flag),
            ("openWorldHint", Shape::Flag),
        ]),
    ),
    (
        "execution",
        Shape::Object(&[(
            "taskSupport",
            Shape::Word(&["forbidden", "optional", "required"]),
        )]),
    ),
    ICONS,
    META,
];
const RESOURCE: [Field; 7] = [
    TITLE,
    DESCRIPTION,
    MEDIA_TYPE,
    ("size", Shape::Size),
    AUDIENCE,
    ICONS,
    META,
];
const TEMPLATE: [Field; 6] = [TITLE, DESCRIPTION, MEDIA_TYPE, AUDIENCE, ICONS, META];
const PROMPT: [Field; 5] = [
    TITLE,
    DESCRIPTION,
    (
        "arguments",
        Shape::Objects("name", &[TITLE, DESCRIPTION, ("required", Shape::Flag)]),
    ),
    ICONS,
    META,
];

/// Result of checking a value against its required form.
enum MendVerdict {
    Fits,
    Changed(String),
    /// The value cannot be corrected and must be removed. Contains the fault.
    Unfit(&'static str),
}

impl Shape {
    fn judge(self, value: &str) -> MendVerdict {
        if value == "null" {
            return MendVerdict::Unfit("is null");
        }
        let fits = match self {
            Self::Text => value.starts_with('"'),
            Self::Flag => matches!(value, "true" | "false"),
            Self::Size => value.bytes().all(|it| it.is_ascii_digit()),
            Self::Share => value
                .parse::<f64>()
                .is_ok_and(|it| (0.0..=1.0).contains(&it)),
            Self::Word(words) => is_word(value, words),
            Self::Words(words) => return listed_words(value, words),
            Self::Texts => serde_json::from_str::<Vec<Cow<'_, str>>>(value).is_ok(),
            Self::Object(fields) => return object(value, fields),
            Self::Objects(name, fields) => return objects(value, name, fields),
        };
        match fits {
            true => MendVerdict::Fits,
            false => MendVerdict::Unfit("is of a wrong type"),
        }
    }
}

fn is_word(value: &str, words: &[&str]) -> bool {
    serde_json::from_str::<Cow<'_, str>>(value).is_ok_and(|word| words.contains(&&*word))
}

/// Checks a list of strings, of which only `words` are allowed. Other elements are removed.
fn listed_words(value: &str, words: &[&str]) -> MendVerdict {
    let fits = |it: &&str| is_word(it, words);
    if value.starts_with('[') && spans::items(value).all(|it| fits(&it)) {
        return MendVerdict::Fits;
    }
    match joined(spans::items(value).filter(fits).map(Cow::Borrowed)) {
        list if list == "[]" => MendVerdict::Unfit("is of a wrong type"),
        list => MendVerdict::Changed(list),
    }
}

/// Checks an object, and corrects its known members.
fn object(value: &str, fields: &[Field]) -> MendVerdict {
    let Some((single, mut changed)) = single_keys(value) else {
        return MendVerdict::Unfit("is of a wrong type");
    };
    let mut text = single;
    let edits = mended_fields(&text, fields, &mut Vec::new());
    if let Some(edited) = edits {
        text = edited.into();
        changed = true;
    }
    match changed {
        true => MendVerdict::Changed(text.into_owned()),
        false => MendVerdict::Fits,
    }
}

/// Checks a list of objects. Objects without a string under the key `name` are removed. If the value is an object whose members
/// are objects, it is converted to a list, with the keys as names.
fn objects(value: &str, name: &str, fields: &[Field]) -> MendVerdict {
    if name == "name" && value.starts_with('{') {
        let Some(list) = named_arguments(value) else {
            return MendVerdict::Unfit("is of a wrong type");
        };
        return match objects(&list, name, fields) {
            MendVerdict::Fits => MendVerdict::Changed(list),
            judged => judged,
        };
    }
    let Ok(all) = serde_json::from_str::<Vec<&RawValue>>(value) else {
        return MendVerdict::Unfit("is of a wrong type");
    };
    let mut changed = false;
    let mut kept: Vec<Cow<'_, str>> = Vec::with_capacity(all.len());
    for item in &all {
        let item = item.get();
        let named = spans::find(item, name).is_some_and(|it| it.starts_with('"'));
        match object(item, fields) {
            MendVerdict::Fits if named => kept.push(item.into()),
            MendVerdict::Changed(text) if named => {
                kept.push(text.into());
                changed = true;
            }
            _ => changed = true,
        }
    }
    match changed {
        true => MendVerdict::Changed(format!("[{}]", kept.join(","))),
        false => MendVerdict::Fits,
    }
}

/// Converts the arguments of a prompt to a list. They may be an object of arguments, or a JSON Schema. A string as an argument
/// becomes its description.
fn named_arguments(object: &str) -> Option<String> {
    let is_schema = spans::find(object, "type").is_some_and(|it| it == r#""object""#);
    let of_schema = is_schema.then(|| spans::find(object, "properties").unwrap_or("{}"));
    let required = of_schema.and_then(|_| spans::find(object, "required"));
    let required: HashSet<Cow<'_, str>> = required
        .and_then(|it| serde_json::from_str(it).ok())
        .unwrap_or_default();
    let members = spans::members(of_schema.unwrap_or(object))?;
    Some(joined(members.iter().map(|(key, value)| {
        let described = match value.as_bytes().first() {
            Some(b'{') => Cow::Borrowed(*value),
            Some(b'"') => format!(r#"{{"description":{value}}}"#).into(),
            _ => "{}".into(),
        };
        let entry = keyed_entry(ListKind::Prompts, key, &described).into_owned();
        match required.contains(key) {
            true => spans::edit(&entry, &[MemberEdit::Set("required", "true".into())]).into(),
            false => entry.into(),
        }
    })))
}

/// Corrects the members of an object that `fields` lists. Returns `None` if nothing is wrong. Adds descriptions of the faults to
/// `wrong`.
fn mended_fields(object: &str, fields: &[Field], wrong: &mut Vec<String>) -> Option<String> {
    let members = spans::members(object)?;
    let mut changes: Vec<MemberEdit<'_>> = Vec::new();
    for (key, value) in &members {
        let Some((key, shape)) = fields.iter().find(|(known, _)| known == key) else {
            continue;
        };
        match shape.judge(value) {
            MendVerdict::Fits => {}
            MendVerdict::Changed(text) => {
                wrong.push(format!("its {key} holds members of wrong types"));
                changes.push(MemberEdit::Set(key, text.into()));
            }
            MendVerdict::Unfit(reason) => {
                wrong.push(format!("its {key} {reason}"));
                changes.push(MemberEdit::Remove(key));
            }
        }
    }
    (!changes.is_empty()).then(|| spans::edit(object, &changes))
}

/// Removes repeated keys from an object. The last value of a key is kept, as in most parsers. The flag is true if a key was
/// repeated. Returns `None` for a value that is not an object.
fn single_keys(object: &str) -> Option<(Cow<'_, str>, bool)> {
    if spans::members(object).is_some() {
        return Some((object.into(), false));
    }
    let raw: &RawValue = serde_json::from_str(object).ok()?;
    let all = all_entries(raw)?;
    let mut seen = HashSet::new();
    let mut last: Vec<String> = Vec::with_capacity(all.len());
    for (key, value) in all.iter().rev() {
        if seen.insert(&**key) {
            let key = serde_json::Value::from(&**key);
            last.push(format!("{key}:{}", value.get()));
        }
    }
    last.reverse();
    Some((format!("{{{}}}", last.join(",")).into(), true))
}

/// Returns true if the object contains the key `name` more than once.
fn is_twice(object: &str, name: &str) -> bool {
    let raw: Option<&RawValue> = serde_json::from_str(object).ok();
    let all = raw.and_then(all_entries).unwrap_or_default();
    all.iter().filter(|(key, _)| key == name).count() > 1
}

/// Corrects the definition of an entry for strict clients. Returns `None` if nothing is wrong. `era` is that of the server: in
/// 2026-07-28, an `outputSchema` may describe any value.
///
/// # Errors
///
/// The reason why no client could use the entry, which must then be removed.
pub fn entry(kind: ListKind, era: Era, definition: &str) -> Result<Option<MendedEntry>, String> {
    // This cheap check precedes parsing, since a list may have millions of values that are not objects.
    let is_object = definition.trim_start().starts_with('{');
    let object = is_object.then_some(definition);
    let Some((mut text, twice)) = object.and_then(single_keys) else {
        return Err("it is no object".into());
    };
    let mut wrong: Vec<String> = Vec::new();
    if twice {
        if is_twice(definition, kind.name()) {
            return Err(format!("its {} is there twice", kind.name()));
        }
        wrong.push("it has a key twice".into());
    }
    let name = spans::find(&text, kind.name()).filter(|name| name.starts_with('"'));
    match name.map(serde_json::from_str::<Cow<'_, str>>) {
        None => return Err(format!("it has no {}", kind.name())),
        Some(Ok(name)) if name.is_empty() => {
            return Err(format!("its {} is empty", kind.name()));
        }
        Some(Ok(uri)) if kind == ListKind::Resources && uri.contains(char::is_whitespace) => {
            return Err("its uri has blanks".into());
        }
        Some(_) => {}
    }
    if let Some(mended) = mended_fields(&text, kind.fields(), &mut wrong) {
        text = mended.into();
    }
    let special = match kind {
        ListKind::Tools => tool(&text, era, &mut wrong)?,
        ListKind::Resources | ListKind::Templates => named_resource(kind, &text, &mut wrong),
        ListKind::Prompts => None,
    };
    if let Some(mended) = special {
        text = mended.into();
    }
    Ok(match wrong.is_empty() {
        true => None,
        false => Some((text.into_owned(), wrong.join("; "))),
    })
}

/// Corrects the schemas in the definition of a tool.
fn tool(text: &str, era: Era, wrong: &mut Vec<String>) -> Result<Option<String>, String> {
    let mut changes = Vec::new();
    let input = spans::find(text, "inputSchema");
    match schema::arguments(input) {
        Ok(None) => {}
        Ok(Some((schema, reasons))) => {
            wrong.extend(reasons.iter().map(|it| format!("its inputSchema {it}")));
            changes.push(MemberEdit::Set("inputSchema", schema.into()));
        }
        Err(reason) => return Err(format!("its inputSchema {reason}")),
    }
    if let Some(output) = spans::find(text, "outputSchema") {
        match schema::output(output, era) {
            Ok(None) => {}
            Ok(Some((schema, reasons))) => {
                wrong.extend(reasons.iter().map(|it| format!("its outputSchema {it}")));
                changes.push(MemberEdit::Set("outputSchema", schema.into()));
            }
            Err(reason) => {
                wrong.push(format!("its outputSchema {reason}"));
                changes.push(MemberEdit::Remove("outputSchema"));
            }
        }
    }
    Ok((!changes.is_empty()).then(|| spans::edit(text, &changes)))
}

/// Adds a name to a resource or template that has none: its URI.
fn named_resource(kind: ListKind, text: &str, wrong: &mut Vec<String>) -> Option<String> {
    if spans::find(text, "name").is_some_and(|name| name.starts_with('"')) {
        return None;
    }
    let uri = spans::find(text, kind.name())?.to_owned();
    wrong.push("it has no name".into());
    Some(spans::edit(text, &[MemberEdit::Set("name", uri.into())]))
}

/// Corrects a page of a list for strict clients. Returns `None` if nothing is wrong. `asked_by` is the cursor (raw JSON) with
/// which the page was requested. `taken` contains the names on earlier pages; the names on this page are added to it.
pub fn page(
    (kind, era): (ListKind, Era),
    page: &str,
    asked_by: Option<&str>,
    taken: &mut HashSet<String>,
) -> Option<(String, Vec<Mend>)> {
    let members = spans::members(page)?;
    let member = |name: &str| {
        let found = members.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| *value)
    };
    // A result that is not a list, such as a question to the client, is not changed.
    if member("resultType").is_some_and(|it| !matches!(it, "null" | r#""complete""#)) {
        return None;
    }
    let mut mends = PageMends::default();
    let mut changes: Vec<MemberEdit<'_>> = Vec::new();
    for key in ["_meta", "resultType", "ttlMs", "cacheScope"] {
        if member(key) == Some("null") {
            mends.of_page(&format!("its {key} is null"));
            changes.push(MemberEdit::Remove(key));
        }
    }
    if let Some(next) = member("nextCursor") {
        match cursor::judge(next, asked_by) {
            cursor::CursorVerdict::Fits => {}
            cursor::CursorVerdict::Changed(text, reason) => {
                mends.of_page(reason);
                changes.push(MemberEdit::Set("nextCursor", text.into()));
            }
            cursor::CursorVerdict::Unfit(reason) => {
                mends.of_page(reason);
                changes.push(MemberEdit::Remove("nextCursor"));
            }
        }
    }
    let list = member(kind.key()).unwrap_or("null");
    if list == "null" {
        mends.of_page(&format!("it has no {}", kind.key()));
        changes.push(MemberEdit::Set(kind.key(), "[]".into()));
    } else if list.starts_with('[') {
        let entries = spans::items(list).map(Cow::Borrowed);
        if let Some(text) = entries_mended((kind, era), entries, taken, &mut mends) {
            changes.push(MemberEdit::Set(kind.key(), text.into()));
        }
    } else if let Some(members) = spans::members(list) {
        mends.of_page(&format!("its {} are no list", kind.key()));
        let entries = members
            .iter()
            .map(|(key, value)| keyed_entry(kind, key, value));
        let text = match entries_mended((kind, era), entries.clone(), taken, &mut mends) {
            Some(text) => text,
            None => joined(entries),
        };
        changes.push(MemberEdit::Set(kind.key(), text.into()));
    }
    (!changes.is_empty()).then(|| (spans::edit(page, &changes), mends.all))
}

/// The corrections of one page. Only the first [`MENDS_MAX`] different ones are stored.
#[derive(Default)]
struct PageMends {
    all: Vec<Mend>,
    known: HashSet<Mend>,
    /// Number of all corrections, including those that are not stored.
    count: usize,
}

impl PageMends {
    fn add(&mut self, mend: impl FnOnce() -> Mend) {
        self.count += 1;
        if self.all.len() < MENDS_MAX {
            let mend = mend();
            if self.known.insert(mend.clone()) {
                self.all.push(mend);
            }
        }
    }

    fn of_page(&mut self, what: &str) {
        self.add(|| Mend {
            entry: None,
            left_out: false,
            what: what.into(),
        });
    }
}

/// Converts a member of an object that should be a list, as PHP and map types write it, to an entry. If the key is not a number,
/// it becomes the entry's name.
fn keyed_entry<'a>(kind: ListKind, key: &str, value: &'a str) -> Cow<'a, str> {
    match key.parse::<u64>() {
        Ok(_) => value.into(),
        Err(_) => {
            let name = serde_json::Value::from(key).to_string();
            spans::edit(value, &[MemberEdit::Default(kind.name(), name.into())]).into()
        }
    }
}

/// Corrects or removes each entry of a list. Returns `None` if all entries are valid. Entries are handled one by one, so that
/// memory stays bounded even for a list with millions of unusable entries.
fn entries_mended<'a>(
    (kind, era): (ListKind, Era),
    entries: impl Iterator<Item = Cow<'a, str>> + Clone,
    taken: &mut HashSet<String>,
    mends: &mut PageMends,
) -> Option<String> {
    let before = mends.count;
    let mut kept: Option<String> = None;
    for (at, definition) in entries.clone().enumerate() {
        let mended = entry(kind, era, &definition);
        let own = spans::find(&definition, kind.name());
        let own = own.and_then(|it| serde_json::from_str::<Cow<'_, str>>(it).ok());
        let mut mend = |left_out, what: String| {
            mends.add(|| {
                let name = own
                    .as_deref()
                    .map(|own| own.chars().take(NAME_MAX).collect());
                Mend {
                    entry: Some(name.unwrap_or_else(|| format!("#{}", at + 1))),
                    left_out,
                    what,
                }
            });
        };
        let text: Option<Cow<'_, str>> = match mended {
            Ok(None) => Some(Cow::Borrowed(&*definition)),
            Ok(Some((text, what))) => {
                mend(false, what);
                Some(text.into())
            }
            Err(what) => {
                mend(true, what);
                None
            }
        };
        let text = text.filter(|text| {
            let name = own.as_deref().map(str::to_owned).or_else(|| {
                let own = spans::find(text, kind.name())?;
                serde_json::from_str::<String>(own).ok()
            });
            let is_new = name.is_none_or(|name| taken.insert(name));
            if !is_new {
                mend(true, format!("its {} is listed before", kind.name()));
            }
            is_new
        });
        if mends.count == before {
            continue;
        }
        let kept = kept.get_or_insert_with(|| start(entries.clone().take(at)));
        if let Some(text) = text {
            put(kept, &text);
        }
    }
    kept.map(|kept| kept + "]")
}

/// Writes a JSON list of these entries, without the closing bracket.
fn start<'a>(entries: impl Iterator<Item = Cow<'a, str>>) -> String {
    let mut list = String::from("[");
    entries.for_each(|entry| put(&mut list, &entry));
    list
}

fn put(list: &mut String, entry: &str) {
    if list.len() > 1 {
        list.push(',');
    }
    list.push_str(entry);
}

fn joined<'a>(entries: impl Iterator<Item = Cow<'a, str>>) -> String {
    start(entries) + "]"
}

/// The names of all entries on a page; URIs for resources and templates.
pub(super) fn names(kind: ListKind, page: &[u8]) -> HashSet<String> {
    let object = spans::raw(page);
    let list = object.and_then(|it| spans::member(it, kind.key()));
    let name = |it: &str| {
        let name = spans::find(it, kind.name())?;
        serde_json::from_str::<String>(name).ok()
    };
    let list = list.map(RawValue::get).unwrap_or_default();
    spans::items(list).filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mended(kind: ListKind, definition: &str) -> Result<Option<String>, String> {
        let mended = entry(kind, Era::Legacy, definition)?;
        Ok(mended.map(|(text, _)| text))
    }

    fn tool(definition: &str) -> Result<Option<String>, String> {
        mended(ListKind::Tools, definition)
    }

    fn listed(text: &str, asked_by: Option<&str>) -> (String, Vec<String>) {
        let kind = (ListKind::Tools, Era::Legacy);
        match page(kind, text, asked_by, &mut HashSet::new()) {
            None => (text.to_owned(), Vec::new()),
            Some((text, mends)) => {
                let said = |it: Mend| format!("{:?} {} {}", it.entry, it.left_out, it.what);
                (text, mends.into_iter().map(said).collect())
            }
        }
    }

    #[test]
    fn a_right_definition_keeps_its_bytes() {
        for right in [
            r#"{"name":"t","inputSchema":{"type":"object"}}"#,
            r#"{"name":"t", "title":"T","inputSchema":{ "properties":{"a":{"default":null,"enum":["a",null]}},"type":"object","required":["a"]},"outputSchema":{"type":"object"},"x":null,"_meta":{"a":null}}"#,
            r#"{"name":"t","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true,"x":1},"icons":[{"src":"data:,","sizes":["1x1"]}],"execution":{"taskSupport":"optional"}}"#,
        ] {
            assert_eq!(tool(right), Ok(None), "{right}");
        }
        let prompt = r#"{"name":"p","arguments":[{"name":"a","required":true,"x":null}]}"#;
        assert_eq!(mended(ListKind::Prompts, prompt), Ok(None));
    }

    #[test]
    fn members_that_clients_refuse_are_left_out() {
        for (wrong, right) in [
            (
                r#"{"name":"t","title":null,"description":7,"annotations":null,"icons":null,"execution":null,"_meta":null,"outputSchema":null,"inputSchema":{"type":"object"}}"#,
                r#"{"name":"t","inputSchema":{"type":"object"}}"#,
            ),
            (
                r#"{"name":"t","annotations":{"title":null,"readOnlyHint":"yes","idempotentHint":true,"x":null},"inputSchema":{"type":"object"}}"#,
                r#"{"name":"t","annotations":{"idempotentHint":true,"x":null},"inputSchema":{"type":"object"}}"#,
            ),
            (
                r#"{"name":"t","icons":[{"src":"a","mimeType":null},{"src":null},7],"execution":{"taskSupport":"maybe"},"inputSchema":{"type":"object"}}"#,
                r#"{"name":"t","icons":[{"src":"a"}],"execution":{},"inputSchema":{"type":"object"}}"#,
            ),
            (
                r#"{"name":"t","description":"a","description":"b","inputSchema":{"type":"object"}}"#,
                r#"{"name":"t","description":"b","inputSchema":{"type":"object"}}"#,
            ),
        ] {
            assert_eq!(tool(wrong), Ok(Some(right.to_owned())), "{wrong}");
        }
        for (kind, wrong, right) in [
            (
                ListKind::Prompts,
                r#"{"name":"p","title":null,"arguments":[{"name":"a","description":null,"required":null},{"description":"b"}]}"#,
                r#"{"name":"p","arguments":[{"name":"a"}]}"#,
            ),
            (
                ListKind::Resources,
                r#"{"uri":"a://b","size":null,"mimeType":null,"annotations":{"audience":"user","priority":0.5}}"#,
                r#"{"uri":"a://b","annotations":{"priority":0.5},"name":"a://b"}"#,
            ),
            (
                ListKind::Templates,
                r#"{"uriTemplate":"a://{b}","name":null}"#,
                r#"{"uriTemplate":"a://{b}","name":"a://{b}"}"#,
            ),
        ] {
            assert_eq!(mended(kind, wrong), Ok(Some(right.to_owned())), "{wrong}");
        }
    }

    #[test]
    fn sizes_audiences_and_priorities_are_in_their_range() {
        let with = |members: &str| format!(r#"{{"uri":"a://b","name":"b"{members}}}"#);
        for wrong in ["-1", "1.5", r#""12""#, "true", "1e3"] {
            let wrong = with(&format!(r#","size":{wrong}"#));
            assert_eq!(
                mended(ListKind::Resources, &wrong),
                Ok(Some(with(""))),
                "{wrong}"
            );
        }
        for (wrong, right) in [
            (r#"{"audience":["user","x",7]}"#, r#"{"audience":["user"]}"#),
            (r#"{"audience":["all"],"priority":1.01}"#, "{}"),
            (r#"{"priority":-0.5,"audience":"user"}"#, "{}"),
            (r#"{"priority":"0.5","audience":{}}"#, "{}"),
        ] {
            let with = |annotations: &str| with(&format!(r#","annotations":{annotations}"#));
            for kind in [ListKind::Resources, ListKind::Templates] {
                let of_kind = |text: String| match kind {
                    ListKind::Templates => text.replace(r#""uri""#, r#""uriTemplate""#),
                    _ => text,
                };
                let fit = of_kind(with(right));
                assert_eq!(
                    mended(kind, &of_kind(with(wrong))),
                    Ok(Some(fit)),
                    "{wrong}"
                );
            }
        }
        let right =
            with(r#","size":0,"annotations":{"audience":["assistant", "user"],"priority":1.0}"#);
        assert_eq!(mended(ListKind::Resources, &right), Ok(None));
        for uri in ["", "a://b c", " a://b", r"a://b\n"] {
            let wrong = format!(r#"{{"uri":"{uri}","name":"b"}}"#);
            assert!(mended(ListKind::Resources, &wrong).is_err(), "{uri}");
        }
    }

    #[test]
    fn arguments_of_prompts_in_an_object_are_a_list() {
        let with = |arguments: &str| format!(r#"{{"name":"p","arguments":{arguments}}}"#);
        for (wrong, right) in [
            ("{}", "[]"),
            (
                r#"{"x":{"required":true,"title":null},"y":"Why","z":null}"#,
                r#"[{"required":true,"name":"x"},{"description":"Why","name":"y"},{"name":"z"}]"#,
            ),
            (r#"{"0":{"name":"a"},"1":{"x":1}}"#, r#"[{"name":"a"}]"#),
            (
                r#"{"type":"object","properties":{"a":{"description":"A"}},"required":["a"]}"#,
                r#"[{"description":"A","name":"a","required":true}]"#,
            ),
        ] {
            assert_eq!(
                mended(ListKind::Prompts, &with(wrong)),
                Ok(Some(with(right))),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_schema_that_is_json_in_a_text_is_read() {
        let text = r#"{"name":"t","inputSchema":"{\n\"type\":\"object\",\"properties\":[]}"}"#;
        let right = r#"{"name":"t","inputSchema":{"type":"object","properties":{}}}"#;
        assert_eq!(tool(text), Ok(Some(right.to_owned())));
        let fit = r#"{"name":"t","inputSchema":"{\n\"type\":\"object\"}"}"#;
        let right = r#"{"name":"t","inputSchema":{ "type":"object"}}"#;
        assert_eq!(tool(fit), Ok(Some(right.to_owned())));
    }

    #[test]
    fn entries_that_nothing_can_be_made_of_are_left_out() {
        for wrong in [
            r#"{"name":"","inputSchema":{"type":"object"}}"#,
            "7",
            "[]",
            "null",
            r#""t""#,
            "{}",
            r#"{"name":null,"inputSchema":{"type":"object"}}"#,
            r#"{"name":5}"#,
            r#"{"name":"a","name":"b","inputSchema":{"type":"object"}}"#,
            r#"{"name":"t","inputSchema":{"type":"string"}}"#,
            r#"{"name":"t","inputSchema":{"type":["string","null"]}}"#,
            r#"{"name":"t","inputSchema":false}"#,
        ] {
            assert!(tool(wrong).is_err(), "{wrong}");
        }
        assert!(mended(ListKind::Resources, r#"{"name":"a"}"#).is_err());
    }

    #[test]
    fn a_page_of_right_entries_keeps_its_bytes() {
        for right in [
            r#"{ "tools" : [{"name":"a","inputSchema":{"type":"object"}} ], "nextCursor":"c","y":null}"#,
            r#"{"tools":[],"nextCursor":""}"#,
            r#"{"resultType":"input_required","inputRequests":{}}"#,
        ] {
            assert_eq!(listed(right, None), (right.to_owned(), vec![]));
        }
    }

    #[test]
    fn one_careless_entry_costs_no_other() {
        let a = r#"{"name":"a","inputSchema":{"type":"object"}, "n":1.50}"#;
        let text = format!(
            r#"{{"tools":[{a},null,{{"name":"b"}},{{"name":"a","inputSchema":{{}}}},{{"inputSchema":{{}}}}],"nextCursor":null,"_meta":null}}"#
        );
        let (page, mends) = listed(&text, None);
        assert_eq!(
            page,
            format!(r#"{{"tools":[{a},{{"name":"b","inputSchema":{{"type":"object"}}}}]}}"#)
        );
        assert_eq!(
            mends,
            [
                "None false its _meta is null",
                "None false its nextCursor is null",
                "Some(\"#2\") true it is no object",
                "Some(\"b\") false its inputSchema is missing",
                "Some(\"a\") false its inputSchema has no type",
                "Some(\"a\") true its name is listed before",
                "Some(\"#5\") true it has no name",
            ]
        );
    }

    #[test]
    fn a_list_that_is_null_or_an_object_is_a_list() {
        for (wrong, right) in [
            (r#"{"tools":null}"#, r#"{"tools":[]}"#),
            ("{}", r#"{"tools":[]}"#),
            (r#"{"tools":{}}"#, r#"{"tools":[]}"#),
            (
                r#"{"tools":{"1":{"name":"a","inputSchema":{"type":"object"}},"b":{"inputSchema":{"type":"object"}}}}"#,
                r#"{"tools":[{"name":"a","inputSchema":{"type":"object"}},{"inputSchema":{"type":"object"},"name":"b"}]}"#,
            ),
        ] {
            assert_eq!(listed(wrong, None).0, right);
        }
        // A page that holds its list twice stays unchanged: filtered views do not show it.
        let twice = r#"{"tools":[],"tools":[{"name":"a"}]}"#;
        assert_eq!(listed(twice, None).0, twice);
    }

    #[test]
    fn entries_beyond_the_mends_that_are_told_apart_are_mended_too() {
        let good =
            |name: usize| format!(r#"{{"name":"t{name}","inputSchema":{{"type":"object"}}}}"#);
        let odd = |name: usize| format!(r#"{{"name":"t{name}"}}"#);
        let all = |write: &dyn Fn(usize) -> String| {
            let first: Vec<_> = (0..10).map(good).collect();
            let rest: Vec<_> = (10..3 * MENDS_MAX).map(write).collect();
            format!(r#"{{"tools":[{},{}]}}"#, first.join(","), rest.join(","))
        };
        let (page, mends) = listed(&all(&odd), None);
        assert_eq!(page, all(&good));
        assert_eq!(mends.len(), MENDS_MAX);
        let same: Vec<_> = std::iter::once(good(0))
            .chain((0..2 * MENDS_MAX).map(|_| good(0)))
            .chain([odd(1)])
            .collect();
        let (page, mends) = listed(&format!(r#"{{"tools":[{}]}}"#, same.join(",")), None);
        assert_eq!(page, format!(r#"{{"tools":[{},{}]}}"#, good(0), good(1)));
        assert_eq!(
            mends,
            [
                "Some(\"t0\") true its name is listed before",
                "Some(\"t1\") false its inputSchema is missing",
            ]
        );
    }

    #[test]
    fn a_page_of_zeros_costs_nothing_for_each() {
        let zeros = vec!["0"; 1_000_000].join(",");
        let text = format!(r#"{{"tools":[{zeros}]}}"#);
        let mut mended = None;
        let cost = allocation_counter::measure(|| {
            let names = names(ListKind::Tools, text.as_bytes());
            assert!(names.is_empty());
            let kind = (ListKind::Tools, Era::Legacy);
            mended = page(kind, &text, None, &mut HashSet::new());
        });
        let (page, mends) = mended.expect("mended");
        assert_eq!((&*page, mends.len()), (r#"{"tools":[]}"#, MENDS_MAX));
        // A copy of the page, and the recorded mends.
        let bound = text.len() as u64 + 1024 * 1024;
        assert!(cost.bytes_max <= bound, "{} bytes", cost.bytes_max);
    }

    #[test]
    fn a_mended_page_needs_no_mend() {
        let odd = r#"{"tools":[{"name":"a","title":null,"inputSchema":{"anyOf":[{"type":"object","properties":null}]}}],"nextCursor":5}"#;
        let (page, mends) = listed(odd, None);
        assert_eq!(mends.len(), 2);
        assert_eq!(listed(&page, None), (page.clone(), vec![]));
    }
}
