//! The catalogue of an aggregate: all offers of its members, under published names. An immutable value, rebuilt when a member's
//! offer changes.
//!
//! If two published names are equal, the catalogue contains the entry of the member that is listed first in the aggregate's file
//! (AGG-09). Tools, resources and prompts have separate names; resources and templates share theirs, since both are activated by
//! their URIs.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use serde_json::value::RawValue;
use tooldock_protocol::jsonrpc::{self, spans};
use tooldock_sessions::session::Toolset;
use tooldock_sessions::session::toolset::EntryId;
use tooldock_workers::aggregate::{ActivePatterns, AggregateSpec, ToolNames};

use super::apps;
use super::budget::Budget;
use super::names;
use super::nearness::NameShape;
use super::offer::OfferEntry;
use super::state::CatalogueOffer;

/// Maximum number of characters of a description in the catalogue's text.
const DESCRIPTION_MAX: usize = 132;
/// Estimated number of a definition's characters per token.
const CHARACTERS_PER_TOKEN: usize = 4;

/// Maximum number of warnings about one catalogue that are logged in full; further warnings are only counted.
const WARNINGS_MAX: usize = 100;

/// The kind of a published entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EntryKind {
    Tool,
    Resource,
    Template,
    Prompt,
}

impl EntryKind {
    /// Number of the name space for this kind of entry. Names are unique within a name space; resources and templates share one.
    fn family(self) -> u8 {
        match self {
            Self::Tool => 0,
            Self::Resource | Self::Template => 1,
            Self::Prompt => 2,
        }
    }

    /// The JSON key of a definition whose value is the entry's name or URI.
    fn key(self) -> &'static str {
        match self {
            Self::Tool | Self::Prompt => "name",
            Self::Resource => "uri",
            Self::Template => "uriTemplate",
        }
    }
}

/// A member's tool, resource, template or prompt with its published name.
#[derive(Debug)]
pub(super) struct PublishedEntry {
    pub(super) kind: EntryKind,
    /// Position of the entry in the catalogue; `usize::MAX` for an entry of an unavailable server.
    pub(super) at: usize,
    /// Position of the entry's member among the members.
    pub(super) member: usize,
    /// The name or URI of the entry at the member.
    pub(super) own: Arc<str>,
    pub(super) published: Arc<str>,
    /// The prefix followed by the member's own name, if `published` replaces some characters of that name; `None` if it replaces
    /// none.
    pub(super) unsafe_name: Option<Arc<str>>,
    /// The member's definition with the published name in it.
    pub(super) definition: String,
    /// The description as shown in the catalogue's text, on one line.
    pub(super) description: String,
    pub(super) id: EntryId,
    /// True if the entry is active for clients that have not changed their active set (the start set).
    pub(super) start: bool,
    /// True if the entry is part of an MCP App: a page, or a tool that only pages call; false for all other entries.
    pub(super) is_of_app: bool,
    /// Published URI of the page that clients show for the tool; `None` if there is none.
    pub(super) page: Option<String>,
    /// The published name prepared for comparisons with unknown names. Computed on first use.
    pub(super) shape: OnceLock<NameShape>,
}

/// All published entries, in the order of members and of their lists.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    entries: Vec<PublishedEntry>,
    by_name: HashMap<(u8, Arc<str>), usize>,
    /// Entries from the last offers of servers that are unavailable now. Their names stay reserved, so that servers later in the
    /// aggregate's file do not publish other entries under them.
    away: HashMap<(u8, Arc<str>), PublishedEntry>,
    /// Tools that name a page which no member lists, as positions in `entries`, by the page's published URI. All tools of a page
    /// belong to one member.
    unlisted_pages: HashMap<String, Vec<usize>>,
}

impl PublishedEntry {
    /// The published name prepared for comparisons with unknown names.
    pub(super) fn shape(&self) -> &NameShape {
        self.shape.get_or_init(|| NameShape::of(&self.published))
    }

    /// Returns true if the entry is active under a toolset. Entries that the model cannot activate are always active.
    pub(super) fn is_active(&self, toolset: &Toolset) -> bool {
        !self.is_switched() || toolset.says(self.id).unwrap_or(self.start)
    }

    /// Returns true if the model activates and deactivates the entry: every entry except prompts and parts of MCP Apps.
    pub(super) fn is_switched(&self) -> bool {
        self.kind != EntryKind::Prompt && !self.is_of_app
    }

    /// Estimated number of tokens of the definition in a model's prompt.
    pub(super) fn tokens(&self) -> usize {
        self.definition.len().div_ceil(CHARACTERS_PER_TOKEN)
    }

    /// Returns true if models see the entry as a resource: a resource or a template.
    pub(super) fn is_resource(&self) -> bool {
        matches!(self.kind, EntryKind::Resource | EntryKind::Template)
    }
}

impl Catalogue {
    /// Merges the offers of members, each with its prefix. Also returns warnings about entries that were omitted or renamed.
    /// `reserved` are the names of the aggregate's own tools.
    pub(super) fn new(
        spec: &AggregateSpec,
        offers: &[CatalogueOffer],
        reserved: &[&str],
    ) -> (Self, Vec<String>) {
        let mut warnings = Warnings::default();
        let mut catalogue = Self::default();
        let reserved: HashSet<_> = reserved.iter().copied().collect();
        let mut publisher = Publisher::new(spec.options.tool_names, offers, &reserved);
        for (member, offered) in offers.iter().enumerate() {
            let prefix = &offered.prefix;
            let Some(offer) = &offered.offer else {
                continue;
            };
            for (kind, list) in [
                (EntryKind::Tool, &offer.tools),
                (EntryKind::Resource, &offer.resources),
                (EntryKind::Template, &offer.templates),
                (EntryKind::Prompt, &offer.prompts),
            ] {
                for listed in list {
                    if !offered.now {
                        if let Some(name) = publisher.name(kind, prefix, &listed.own) {
                            let last = entry(
                                (kind, usize::MAX),
                                (member, prefix),
                                name,
                                listed,
                                &spec.active,
                            );
                            let key = (kind.family(), Arc::clone(&last.published));
                            if !catalogue.by_name.contains_key(&key) {
                                catalogue.away.entry(key).or_insert(last);
                            }
                        }
                        continue;
                    }
                    if let Some(why) = unfit(&listed.own) {
                        warnings.add(|| {
                            let name = crate::engine::shortened(&listed.own);
                            format!("{name:?} of server {prefix:?} is left out: its name {why}")
                        });
                        continue;
                    }
                    let at = catalogue.entries.len();
                    let Some(name) = publisher.name(kind, prefix, &listed.own) else {
                        warnings.add(|| {
                            let name = names::prefixed(kind, prefix, &listed.own);
                            format!("{name} of server {prefix:?} is left out: an earlier server has the name already")
                        });
                        continue;
                    };
                    let entry = entry((kind, at), (member, prefix), name, listed, &spec.active);
                    if let Some(own) = &entry.unsafe_name {
                        let safe = &entry.published;
                        warnings.add(|| format!("{own} is published as {safe}, since APIs of models take letters and digits of ASCII, _ and - in names (tool_names = \"safe\")"));
                    } else if let Some(long) = names::prefixed_too_long(kind, prefix, &listed.own) {
                        let short = &entry.published;
                        warnings.add(|| format!("{long} has more than the 64 characters that all clients take; it is published as {short}"));
                    }
                    let is_own = kind == EntryKind::Tool && reserved.contains(&*entry.published);
                    let key = (kind.family(), Arc::clone(&entry.published));
                    let is_taken =
                        catalogue.by_name.contains_key(&key) || catalogue.away.contains_key(&key);
                    if is_own || is_taken {
                        warnings.add(|| {
                            let name = &entry.published;
                            format!("{name} of server {prefix:?} is left out: an earlier server has the name already")
                        });
                        continue;
                    }
                    catalogue.by_name.insert(key, at);
                    catalogue.entries.push(entry);
                }
            }
        }
        catalogue.remove_pages_of_other_members(&mut warnings);
        (catalogue, warnings.all())
    }

    /// Finds the member of each page, and removes the page from tools of other members: a client would show another member's
    /// page with their results. A page belongs to the member that lists it, else to the first member with a tool that names it.
    fn remove_pages_of_other_members(&mut self, warnings: &mut Warnings) {
        for at in 0..self.entries.len() {
            let Some(page) = &self.entries[at].page else {
                continue;
            };
            let member = self.entries[at].member;
            let listed = self.find(EntryKind::Resource, page).map(|it| it.member);
            let first = self.unlisted_pages.get(page).map(|tools| tools[0]);
            let owner = listed.or_else(|| first.map(|it| self.entries[it].member));
            if owner.is_none_or(|owner| owner == member) {
                if listed.is_none() {
                    let page = page.clone();
                    self.unlisted_pages.entry(page).or_default().push(at);
                }
                continue;
            }
            let entry = &mut self.entries[at];
            warnings.add(|| {
                let (name, page) = (&entry.published, entry.page.as_deref());
                let page = page.unwrap_or_default();
                format!("{name} is published without its page {page}: an earlier server has the URI already")
            });
            entry.definition = apps::without_page(&entry.definition);
            entry.page = None;
        }
    }

    /// All published entries of one kind.
    pub(super) fn of(&self, kind: EntryKind) -> impl Iterator<Item = &PublishedEntry> {
        self.entries.iter().filter(move |entry| entry.kind == kind)
    }

    /// All published entries, in the order of members and of their lists.
    pub(super) fn entries(&self) -> &[PublishedEntry] {
        &self.entries
    }

    /// The entry of this kind with this published name.
    pub(super) fn find(&self, kind: EntryKind, published: &str) -> Option<&PublishedEntry> {
        self.named(kind, published)
            .filter(|entry| entry.kind == kind)
    }

    pub(super) fn tool(&self, published: &str) -> Option<&PublishedEntry> {
        self.named(EntryKind::Tool, published)
    }

    /// The tool that a server, unavailable now, last offered under this published name.
    pub(super) fn away_tool(&self, published: &str) -> Option<&PublishedEntry> {
        self.away.get(&(EntryKind::Tool.family(), published.into()))
    }

    pub(super) fn prompt(&self, published: &str) -> Option<&PublishedEntry> {
        self.named(EntryKind::Prompt, published)
    }

    /// The resource with this published URI, or the template with this text.
    pub(super) fn resource(&self, published: &str) -> Option<&PublishedEntry> {
        self.named(EntryKind::Resource, published)
    }

    fn named(&self, kind: EntryKind, published: &str) -> Option<&PublishedEntry> {
        let at = self.by_name.get(&(kind.family(), published.into()))?;
        Some(&self.entries[*at])
    }

    /// The best template that a URI may match, among the templates that `fits` accepts: active ones before others, then the one
    /// with the longest prefix (K-42).
    pub(super) fn template(
        &self,
        uri: &str,
        prefix_of: impl Fn(usize) -> usize,
        fits: impl Fn(&PublishedEntry) -> bool,
        is_active: impl Fn(&PublishedEntry) -> bool,
    ) -> Option<&PublishedEntry> {
        let mut budget = Budget::default();
        let matching = self
            .of(EntryKind::Template)
            .filter(|entry| budget.may_be_of(&entry.published, uri) && fits(entry));
        let mut best: Option<(&PublishedEntry, (bool, usize))> = None;
        for entry in matching {
            let rank = (is_active(entry), prefix_of(entry.member));
            // Keeps the first of equally ranked templates.
            if best.is_none_or(|(_, before)| rank > before) {
                best = Some((entry, rank));
            }
        }
        best.map(|(entry, _)| entry)
    }

    /// Returns a tool that names the page with this published URI and for which `fits` returns true. `None` if there is no such
    /// tool, or if a member lists the page.
    pub(super) fn tool_of_page(
        &self,
        uri: &str,
        fits: impl Fn(&PublishedEntry) -> bool,
    ) -> Option<&PublishedEntry> {
        let tools = self.unlisted_pages.get(uri)?;
        let mut tools = tools.iter().map(|at| &self.entries[*at]);
        tools.find(|it| fits(it))
    }

    /// Returns the published URI of a member's resource. `None` unless the member lists the resource, has a template that matches
    /// it, or has a tool that names it as a page.
    pub(super) fn published_uri(
        &self,
        member: usize,
        prefix: &str,
        own: &str,
        budget: &mut Budget,
    ) -> Option<String> {
        let published = names::prefixed(EntryKind::Resource, prefix, own);
        let listed = self.find(EntryKind::Resource, &published);
        let is_own = |entry: &PublishedEntry| entry.member == member;
        let offered = listed.is_some_and(is_own)
            || self.tool_of_page(&published, is_own).is_some()
            || self.of(EntryKind::Template).any(|entry| {
                // The member's prefix stands before or after the scheme, which must be alike in the template and in the URI.
                let is_alike = names::kept_scheme(&entry.own) == names::kept_scheme(own);
                is_own(entry) && is_alike && budget.may_be_of(&entry.own, own)
            });
        offered.then_some(published)
    }
}

/// Warnings about a catalogue. The first [`WARNINGS_MAX`] are stored as text; further ones are only counted.
#[derive(Default)]
struct Warnings {
    told: Vec<String>,
    more: usize,
}

impl Warnings {
    fn add(&mut self, warning: impl FnOnce() -> String) {
        match self.told.len() < WARNINGS_MAX {
            true => self.told.push(warning()),
            false => self.more += 1,
        }
    }

    fn all(mut self) -> Vec<String> {
        if self.more > 0 {
            self.told.push(format!(
                "{} more names are left out or shortened",
                self.more
            ));
        }
        self.told
    }
}

/// A published name that was assigned to an entry.
struct AssignedName {
    published: String,
    /// The original name with its prefix, if some of its characters were replaced in the published name.
    full: Option<String>,
}

/// Assigns the names under which entries are published.
struct Publisher {
    names: ToolNames,
    /// Prefixed names of all members' entries that are published with unchanged characters.
    plain: HashSet<(u8, String)>,
    /// Published names that were assigned so far.
    given: HashSet<(u8, String)>,
    replaced: HashSet<(u8, String)>,
}

impl Publisher {
    fn new(names: ToolNames, offers: &[CatalogueOffer], reserved: &HashSet<&str>) -> Self {
        let own = reserved
            .iter()
            .map(|name| (EntryKind::Tool.family(), (*name).to_owned()));
        let mut plain: HashSet<_> = own.collect();
        for offered in offers.iter().filter(|_| names == ToolNames::Safe) {
            let Some(offer) = &offered.offer else {
                continue;
            };
            for (kind, list) in [
                (EntryKind::Tool, &offer.tools),
                (EntryKind::Prompt, &offer.prompts),
            ] {
                for listed in list {
                    let full = names::prefixed(kind, &offered.prefix, &listed.own);
                    if names::safe(&full).is_none() {
                        let published = names::short(&full).unwrap_or(full);
                        plain.insert((kind.family(), published));
                    }
                }
            }
        }
        Self {
            names,
            plain,
            given: HashSet::new(),
            replaced: HashSet::new(),
        }
    }

    /// Assigns the published name of an entry. Returns `None` if characters of the name must be replaced and an earlier entry has
    /// the same original name.
    fn name(&mut self, kind: EntryKind, prefix: &str, own: &str) -> Option<AssignedName> {
        let full = names::prefixed(kind, prefix, own);
        let is_name = matches!(kind, EntryKind::Tool | EntryKind::Prompt);
        let safe = match is_name && self.names == ToolNames::Safe {
            true => names::safe(&full),
            false => None,
        };
        let Some(safe) = safe else {
            let short = is_name.then(|| names::short(&full)).flatten();
            return Some(AssignedName {
                published: short.unwrap_or(full),
                full: None,
            });
        };
        if !self.replaced.insert((kind.family(), full.clone())) {
            return None;
        }
        let mut key = (kind.family(), safe);
        let is_long = names::short(&key.1).is_some();
        if is_long || self.plain.contains(&key) || self.given.contains(&key) {
            key.1 = names::with_digest(&key.1, &full);
        }
        self.given.insert(key.clone());
        Some(AssignedName {
            published: key.1,
            full: Some(full),
        })
    }
}

fn entry(
    (kind, at): (EntryKind, usize),
    (member, prefix): (usize, &str),
    name: AssignedName,
    listed: &OfferEntry,
    active: &ActivePatterns,
) -> PublishedEntry {
    let AssignedName { published, full } = name;
    let mut definition = match published == *listed.own {
        true => listed.definition.get().to_owned(),
        false => renamed(listed.definition.get(), kind.key(), &published),
    };
    let published_page = |own: &str| Some(names::prefixed(EntryKind::Resource, prefix, own));
    if let Some(edit) = apps::meta_edit(&listed.definition, published_page) {
        definition = spans::edit(&definition, &[edit]);
    }
    let page = match kind {
        EntryKind::Tool => apps::page_of(&listed.definition).and_then(|own| published_page(&own)),
        _ => None,
    };
    let is_of_app = match kind {
        EntryKind::Tool => apps::is_app_only(&listed.definition),
        EntryKind::Resource | EntryKind::Template => apps::is_page(&listed.own),
        EntryKind::Prompt => false,
    };
    let published: Arc<str> = published.into();
    PublishedEntry {
        kind,
        at,
        member,
        own: Arc::clone(&listed.own),
        definition,
        description: one_line_description(&listed.definition),
        id: EntryId::of(kind.family(), &published),
        start: active.matches(&published) || full.as_ref().is_some_and(|it| active.matches(it)),
        is_of_app,
        page,
        published,
        unsafe_name: full.map(Into::into),
        shape: OnceLock::new(),
    }
}

/// The reason why a name cannot be published. An empty name cannot be called, and a name with a line break would end its line
/// in the catalogue's text and could forge lines of other entries.
fn unfit(name: &str) -> Option<&'static str> {
    let breaks = |it: char| it.is_control() || matches!(it, '\u{2028}' | '\u{2029}');
    match name {
        "" => Some("is empty"),
        _ => name.contains(breaks).then_some("holds control characters"),
    }
}

fn renamed(definition: &str, key: &'static str, published: &str) -> String {
    let name = serde_json::Value::from(published).to_string();
    spans::edit(definition, &[spans::MemberEdit::Set(key, name.into())])
}

/// The description of a definition on one line, cut short, with every run of white space as one blank.
fn one_line_description(definition: &RawValue) -> String {
    let description = spans::member(definition, "description").and_then(jsonrpc::string);
    let words = description.unwrap_or_default();
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(DESCRIPTION_MAX).collect()
}

#[cfg(test)]
mod tests {
    use tooldock_workers::aggregate::AggregateOptions;

    use super::*;
    use crate::upstream::aggregate::offer::Offer;

    fn listed(own: &str, definition: &str) -> OfferEntry {
        OfferEntry {
            own: own.into(),
            definition: RawValue::from_string(definition.to_owned()).unwrap(),
        }
    }

    fn tool(name: &str, description: &str) -> OfferEntry {
        listed(
            name,
            &format!(r#"{{"name":"{name}","description":"{description}","n":1.50}}"#),
        )
    }

    fn template(uri: &str) -> OfferEntry {
        listed(uri, &format!(r#"{{"uriTemplate":"{uri}","name":"x"}}"#))
    }

    fn spec(active: &[&str]) -> AggregateSpec {
        let active = active.iter().map(|it| (*it).to_owned()).collect();
        AggregateSpec {
            file: "tools.toml".into(),
            members: Vec::new(),
            active: ActivePatterns::new(active).unwrap(),
            options: AggregateOptions::default(),
        }
    }

    fn catalogue(active: &[&str], offers: Vec<(&str, Offer)>) -> Catalogue {
        let offers = offers.into_iter();
        let offers = offers.map(|(prefix, offer)| offered(prefix, offer, true));
        made_of(active, &offers.collect::<Vec<_>>())
    }

    fn offered(prefix: &str, offer: Offer, now: bool) -> CatalogueOffer {
        CatalogueOffer {
            prefix: prefix.into(),
            offer: Some(Arc::new(offer)),
            now,
        }
    }

    fn made_of(active: &[&str], offers: &[CatalogueOffer]) -> Catalogue {
        Catalogue::new(&spec(active), offers, &["toolman_activate"]).0
    }

    #[test]
    fn a_server_that_is_away_keeps_its_names_from_later_ones() {
        let of = |name| Offer {
            tools: vec![tool(name, "1")],
            ..Offer::default()
        };
        let later = offered("", of("a_list"), true);
        for (now, found) in [(true, Some(0)), (false, None)] {
            let first = offered("a", of("list"), now);
            let catalogue = made_of(&[], &[first, later.clone()]);
            let member = catalogue.tool("a_list").map(|entry| entry.member);
            assert_eq!(member, found, "there: {now}");
            let away = catalogue.away_tool("a_list").map(|entry| entry.member);
            assert_eq!(away, (!now).then_some(0), "there: {now}");
        }
        // A server behind that is away does not count.
        let of_both = [
            offered("a", of("list"), true),
            offered("", of("a_list"), false),
        ];
        assert!(made_of(&[], &of_both).away_tool("a_list").is_none());
        // The name of an entry that the first server no longer offers is free.
        let first = offered("a", of("other"), true);
        let catalogue = made_of(&[], &[first, later]);
        assert_eq!(catalogue.tool("a_list").map(|entry| entry.member), Some(1));
    }

    #[test]
    fn the_first_server_keeps_a_name_and_definitions_keep_their_bytes() {
        let of = catalogue(
            &["a_*"],
            vec![
                (
                    "a",
                    Offer {
                        tools: vec![tool("b_c", "1")],
                        ..Offer::default()
                    },
                ),
                (
                    "a_b",
                    Offer {
                        tools: vec![tool("c", "2")],
                        ..Offer::default()
                    },
                ),
                (
                    "",
                    Offer {
                        tools: vec![tool("toolman_activate", "3"), tool("x", "4")],
                        ..Offer::default()
                    },
                ),
            ],
        );
        let names: Vec<_> = of.of(EntryKind::Tool).map(|it| &*it.published).collect();
        assert_eq!(names, ["a_b_c", "x"]);
        let first = of.tool("a_b_c").unwrap();
        assert_eq!((first.member, &*first.own, first.start), (0, "b_c", true));
        assert_eq!(
            first.definition,
            r#"{"name":"a_b_c","description":"1","n":1.50}"#
        );
        assert!(!of.tool("x").unwrap().start);
    }

    #[test]
    fn a_tool_is_published_without_a_page_whose_uri_another_member_has() {
        let of = |page: &str| {
            let tool = format!(r#"{{"name":"show","_meta":{{"ui":{{"resourceUri":"{page}"}}}}}}"#);
            let resource = format!(r#"{{"uri":"{page}","name":"page"}}"#);
            Offer {
                tools: vec![listed("show", &tool)],
                resources: vec![listed(page, &resource)],
                ..Offer::default()
            }
        };
        let offers = [
            offered("a", of("ui://b_x"), true),
            offered("a_b", of("ui://x"), true),
        ];
        let (catalogue, warnings) = Catalogue::new(&spec(&[]), &offers, &[]);
        let page = |name| catalogue.tool(name).expect(name).page.as_deref();
        assert_eq!(page("a_show"), Some("ui://a_b_x"));
        assert_eq!(page("a_b_show"), None);
        let definition = &catalogue.tool("a_b_show").expect("a tool").definition;
        assert!(!definition.contains("ui://"), "{definition}");
        assert!(
            warnings.iter().any(|it| it.contains("without its page")),
            "{warnings:?}"
        );
        // Without a list of resources, the page belongs to the first member with a tool that names it.
        let of_tool = |page| Offer {
            resources: Vec::new(),
            ..of(page)
        };
        let offers = [
            offered("a", of_tool("ui://b_x"), true),
            offered("a_b", of_tool("ui://x"), true),
        ];
        let catalogue = made_of(&[], &offers);
        let page = |name| catalogue.tool(name).expect(name).page.as_deref();
        assert_eq!(
            (page("a_show"), page("a_b_show")),
            (Some("ui://a_b_x"), None)
        );
        let member = catalogue.tool_of_page("ui://a_b_x", |_| true);
        assert_eq!(member.map(|it| it.member), Some(0));
    }

    #[test]
    fn a_page_that_its_member_does_not_list_is_published_by_its_tool() {
        let tool = r#"{"name":"show","_meta":{"ui":{"resourceUri":"ui://x"}}}"#;
        let offer = Offer {
            tools: vec![listed("show", tool)],
            ..Offer::default()
        };
        let of = catalogue(&[], vec![("a", offer)]);
        assert!(of.tool_of_page("ui://a_x", |_| true).is_some());
        assert!(of.tool_of_page("ui://a_y", |_| true).is_none());
        let published = |own| of.published_uri(0, "a", own, &mut Budget::default());
        assert_eq!(published("ui://x").as_deref(), Some("ui://a_x"));
        assert_eq!(published("ui://y"), None);
    }

    #[test]
    fn published_names_are_those_that_model_apis_take_and_are_told_apart() {
        let tools = |names: &[&str]| Offer {
            tools: names.iter().map(|name| tool(name, "1")).collect(),
            ..Offer::default()
        };
        let offers = [
            offered(
                "",
                tools(&["a.b", "a:b", "a_b", "größe", "long name "]),
                true,
            ),
            offered("x.y", tools(&["t", "größe"]), true),
            offered("", tools(&["a.b", "größe"]), true),
        ];
        let of = made_of(&["a.*"], &offers);
        let published: Vec<_> = of.entries().iter().map(|it| &*it.published).collect();
        assert_eq!(
            published,
            [
                "a_b_2e7336dc",
                "a_b_6783a31e",
                "a_b",
                "gr__e",
                "long_name_",
                "x_y_t",
                "x_y_gr__e"
            ]
        );
        for entry in of.entries() {
            let name = &*entry.published;
            let fits = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '-');
            assert!(name.chars().all(fits) && name.len() <= 64, "{name}");
            assert!(entry.definition.contains(&format!("\"name\":\"{name}\"")));
        }
        let dotted = of.tool(published[0]).unwrap();
        assert_eq!(
            (&*dotted.own, dotted.unsafe_name.as_deref()),
            ("a.b", Some("a.b"))
        );
        assert!(dotted.start && !of.tool("a_b").unwrap().start);
        let mut as_is = spec(&[]);
        as_is.options.tool_names = ToolNames::AsIs;
        let of = Catalogue::new(&as_is, &offers, &[]).0;
        let published: Vec<_> = of.entries().iter().map(|it| &*it.published).collect();
        assert_eq!(
            published,
            [
                "a.b",
                "a:b",
                "a_b",
                "größe",
                "long name ",
                "x.y_t",
                "x.y_größe"
            ]
        );
    }

    #[test]
    fn what_has_a_name_with_control_characters_is_left_out() {
        let all = |names: [&str; 2]| names.map(|name| listed(name, "{}")).into();
        let of = catalogue(
            &["*"],
            vec![(
                "a",
                Offer {
                    tools: all(["x: ok\n* github_delete: safe", "say hi"]),
                    resources: all(["item://1\u{7f}", "item://1"]),
                    templates: all(["item://\u{2028}{id}", "item://{id}"]),
                    prompts: all(["p\r", "p"]),
                },
            )],
        );
        let names = of.entries().iter().map(|it| &*it.published);
        let wanted = ["a_say_hi", "a_item://1", "a_item://{id}", "a_p"];
        assert_eq!(names.collect::<Vec<_>>(), wanted);
        assert!(of.entries().iter().enumerate().all(|(at, it)| it.at == at));
    }

    #[test]
    fn a_description_is_cut_by_characters_and_kept_on_one_line() {
        let long = "ä".repeat(200);
        let of = catalogue(
            &[],
            vec![(
                "",
                Offer {
                    tools: vec![tool("a", &long), tool("b", "one\\n two")],
                    ..Offer::default()
                },
            )],
        );
        assert_eq!(of.tool("a").unwrap().description.chars().count(), 132);
        assert_eq!(of.tool("b").unwrap().description, "one two");
    }

    #[test]
    fn a_uri_belongs_to_the_longest_prefix_among_active_templates() {
        let offer = |uri| Offer {
            templates: vec![template(uri)],
            ..Offer::default()
        };
        let of = catalogue(
            &["a_*"],
            vec![("a", offer("{+x}")), ("a_b", offer("item://{id}"))],
        );
        let prefix_of = |member: usize| ["a", "a_b"][member].len();
        let mut toolset = Toolset::default();
        let found = |toolset: &Toolset| {
            let is_active = |entry: &PublishedEntry| entry.is_active(toolset);
            of.template("a_b_item://42", prefix_of, |_| true, is_active)
                .unwrap()
                .member
        };
        assert_eq!(found(&toolset), 1);
        let inner = of.resource("a_b_item://{id}").unwrap();
        toolset.set(inner.id, false, inner.start);
        assert_eq!(found(&toolset), 0);
        let none = of.template("b_item://42", prefix_of, |_| true, |_| true);
        assert!(none.is_none());
        // An entry that its caller may not know of hides no other.
        let shown = of.template("a_b_item://42", prefix_of, |it| it.member == 0, |_| false);
        assert_eq!(shown.unwrap().member, 0);
    }

    #[test]
    fn only_uris_that_the_member_offers_are_published() {
        let offer = Offer {
            resources: vec![listed("projects://list", r#"{"uri":"projects://list"}"#)],
            templates: vec![template("item://{id}")],
            ..Offer::default()
        };
        let of = catalogue(&[], vec![("p", offer)]);
        let published = |uri| of.published_uri(0, "p", uri, &mut Budget::default());
        assert_eq!(
            published("projects://list").as_deref(),
            Some("p_projects://list")
        );
        assert_eq!(published("item://7").as_deref(), Some("p_item://7"));
        assert_eq!(published("https://example.com/"), None);
    }
}
