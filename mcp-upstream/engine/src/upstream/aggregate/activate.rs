//! `toolman_activate`: all arguments are checked first, then all changes are made in one step (AGG-14 to AGG-20).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tooldock_base::error::CallError;
use tooldock_base::heavy_work;
use tooldock_sessions::broadcast::Change;
use tooldock_workers::aggregate::{ActivePatterns, AggregateOptions};

use super::catalogue::{Catalogue, PublishedEntry};
use super::hints::NOWHERE;
use super::own::{
    ACTIVATE, AggregateReply, CatalogueView, LISTS, activation, activation_of, list_names,
};
use super::snapshot::Snapshot;
use super::toolsets::{Active, Switches, ToolsetStorage, changes, keep_in_session};
use super::{AggregatesState, RunningAggregate};

/// Maximum number of names and patterns in one call of `toolman_activate`, and maximum number of patterns among them, which is
/// lower because each pattern is matched with all entries.
const NAMES_MAX: usize = 10_000;
const PATTERNS_MAX: usize = 100;
/// Maximum number of mistakes that one response explains.
const EXPLAINED_MAX: usize = 10;
/// Maximum size in bytes of a call that an error message suggests as a correction. Longer calls are not suggested.
const COMPLETED_MAX: usize = 4096;
/// Maximum number of characters for the names in a confirmation: `ONE_LIST` if entries were only activated or only deactivated,
/// `BOTH_LISTS` for each of the two lists if both happened. The whole confirmation stays below 200 characters.
const ONE_LIST: usize = 90;
const BOTH_LISTS: usize = 40;

/// The checked changes of an activation.
#[derive(Debug)]
struct Plan<'a> {
    /// The entries to change, by kind (true for resources) and published name. The flag is true for an entry to activate and
    /// false for an entry to deactivate.
    wanted: BTreeMap<(bool, &'a str), (&'a PublishedEntry, bool)>,
}

/// Checks the arguments of `toolman_activate`.
///
/// # Errors
///
/// The mistakes and how to correct them, for the model. No change is made then.
fn plan<'a>(
    shown: &'a CatalogueView<'_>,
    arguments: &[u8],
    options: &AggregateOptions,
) -> Result<Plan<'a>, String> {
    let arguments: BTreeMap<String, Value> = serde_json::from_slice(arguments).map_err(|_| {
        let lists = LISTS.join(", ");
        format!("give an object with the lists {lists}{}", such_as(shown))
    })?;
    let mut lists = Vec::new();
    let mut wrong = Vec::new();
    for key in LISTS {
        match arguments
            .get(key)
            .map(|value| serde_json::from_value::<Vec<String>>(value.clone()))
        {
            Some(Ok(names)) => lists.push((key, names)),
            Some(Err(_)) => wrong.push(format!("{key} must be a list of strings")),
            None => wrong.push(format!("{key} is missing: give [] to leave it empty")),
        }
    }
    if !wrong.is_empty() {
        return Err(format!(
            "{}{}",
            wrong.join("; "),
            completed(shown, &arguments)
        ));
    }
    if lists.iter().map(|(_, names)| names.len()).sum::<usize>() > NAMES_MAX {
        return Err(format!(
            "nothing was changed: one call may give {NAMES_MAX} names"
        ));
    }
    if lists.iter().all(|(_, names)| names.is_empty()) {
        return Err(format!(
            "all four lists are empty: name at least one tool or resource of the catalogue in the description of {ACTIVATE}{}",
            such_as(shown)
        ));
    }
    let mut plan = Plan {
        wanted: BTreeMap::new(),
    };
    let mut mistakes = 0;
    let mut patterns = 0;
    for (key, names) in &lists {
        let (resources, on) = (key.starts_with("resources"), key.ends_with("_on"));
        for name in names {
            let found = match named(shown, name, resources) {
                Some(entry) => Ok(vec![entry]),
                None if is_pattern(name, options) => {
                    patterns += 1;
                    if patterns > PATTERNS_MAX {
                        return Err(format!(
                            "nothing was changed: one call may give {PATTERNS_MAX} patterns"
                        ));
                    }
                    matching(shown, name, resources)
                }
                None => Ok(Vec::new()),
            };
            let invalid = found.as_ref().err().cloned();
            let found = found.unwrap_or_default();
            if found.is_empty() {
                mistakes += 1;
                if mistakes <= EXPLAINED_MAX {
                    wrong.push(invalid.unwrap_or_else(|| shown.unknown(name, resources)));
                }
            }
            for entry in found {
                let published = (resources, &*entry.published);
                let before = plan.wanted.insert(published, (entry, on));
                if before.is_some_and(|(_, before)| before != on) {
                    mistakes += 1;
                    if mistakes <= EXPLAINED_MAX {
                        wrong.push(format!("{} is to be both on and off", entry.published));
                    }
                }
            }
        }
    }
    if mistakes > EXPLAINED_MAX {
        wrong.push(format!("{} more", mistakes - EXPLAINED_MAX));
    }
    if wrong.is_empty() {
        return Ok(plan);
    }
    let corrected = match mistakes <= EXPLAINED_MAX {
        true => corrected(shown, &lists, options),
        false => None,
    };
    let call = corrected.map_or_else(String::new, |call| format!(" Perhaps: {call}"));
    Err(format!("nothing was changed: {}{call}", wrong.join("; ")))
}

/// The call to suggest in an error: each unknown name is replaced by the nearest known name, and a resource's name among the
/// tools, or a tool's among the resources, is moved to its list. `None` if a name would be turned on and off at once, if no name
/// is left, or if the text is too long for an error.
fn corrected(
    shown: &CatalogueView<'_>,
    lists: &[(&str, Vec<String>)],
    options: &AggregateOptions,
) -> Option<String> {
    let mut corrected: [Vec<&str>; 4] = Default::default();
    for (at, (key, names)) in lists.iter().enumerate() {
        let is_resource = key.starts_with("resources");
        for name in names {
            let (list, name) = if named(shown, name, is_resource).is_some() {
                (at, &**name)
            } else if named(shown, name, !is_resource).is_some() {
                (at ^ 2, &**name)
            } else if is_pattern(name, options) {
                (at, &**name)
            } else if let Some(near) = shown.nearest_names(name, is_resource).first() {
                (at, *near)
            } else {
                continue;
            };
            if corrected[list ^ 1].contains(&name) {
                return None;
            }
            if !corrected[list].contains(&name) {
                corrected[list].push(name);
            }
        }
    }
    let call = activation(corrected.clone().map(|names| json!(names)));
    let is_empty = corrected.iter().all(Vec::is_empty);
    (!is_empty && call.len() <= COMPLETED_MAX).then_some(call)
}

/// An example of a complete call of `toolman_activate`, for the end of an error message.
fn such_as(shown: &CatalogueView<'_>) -> String {
    let entry = shown.exemplary();
    let call = entry.map(|it| activation_of(&it.published, it.is_resource()));
    call.map_or_else(String::new, |call| format!(", for example {call}"))
}

/// The call of `toolman_activate` with the caller's arguments, and with all four lists of names (`tools_on` and so on), for the
/// end of an error. A string is converted to a list with that string; all other values except lists of strings become empty
/// lists.
fn completed(shown: &CatalogueView<'_>, arguments: &BTreeMap<String, Value>) -> String {
    let lists = LISTS.map(|key| match arguments.get(key) {
        Some(Value::String(name)) => json!([name]),
        Some(list) if serde_json::from_value::<Vec<String>>(list.clone()).is_ok() => list.clone(),
        _ => json!([]),
    });
    let is_empty = lists.iter().all(|it| *it == json!([]));
    let call = activation(lists);
    match is_empty || call.len() > COMPLETED_MAX {
        true => such_as(shown),
        false => format!(": {call}"),
    }
}

/// The entry that is published under exactly this name.
fn named<'a>(
    shown: &'a CatalogueView<'_>,
    name: &str,
    resources: bool,
) -> Option<&'a PublishedEntry> {
    let one = match resources {
        true => shown.catalogue.resource(name),
        false => shown.catalogue.tool(name),
    };
    one.filter(|entry| (shown.visible)(entry))
}

fn is_pattern(name: &str, options: &AggregateOptions) -> bool {
    options.activation_patterns && name.contains(['*', '?', '[', '{'])
}

/// The entries that a pattern matches. If the pattern is invalid, the error describes its fault.
fn matching<'a>(
    shown: &'a CatalogueView<'_>,
    pattern: &str,
    resources: bool,
) -> Result<Vec<&'a PublishedEntry>, String> {
    let pattern = ActivePatterns::new(vec![pattern.to_owned()]).map_err(|it| it.to_string())?;
    let all = shown.switched();
    let all = all.filter(|entry| entry.is_resource() == resources);
    let matching = all.filter(|entry| pattern.matches(&entry.published));
    Ok(matching.collect())
}

impl Plan<'_> {
    /// The changes of the plan. They are applied to the active set that is current when they are stored.
    fn switches(&self, catalogue: &Catalogue) -> Switches {
        let wanted = self.wanted.values();
        let wanted = wanted.map(|(entry, on)| (entry.id, *on, entry.start));
        Switches {
            wanted: wanted.collect(),
            known: catalogue.entries().iter().map(|entry| entry.id).collect(),
        }
    }

    fn names(&self, on: bool) -> Vec<&str> {
        let all = self.wanted.values().filter(|(_, it)| *it == on);
        all.map(|(entry, _)| &*entry.published).collect()
    }

    /// A sentence about the changes that were made.
    fn done(&self) -> String {
        let (on, off) = (self.names(true), self.names(false));
        let max = match on.is_empty() || off.is_empty() {
            true => ONE_LIST,
            false => BOTH_LISTS,
        };
        let part = |word, names: &[&str]| match names.is_empty() {
            true => None,
            false => Some(format!("{word}: {}", list_names(names, max))),
        };
        let parts = [part("Activated", &on), part("Deactivated", &off)];
        parts.into_iter().flatten().collect::<Vec<_>>().join(". ")
    }

    /// The definitions of the activated entries, for clients that do not request the lists again after an activation.
    fn definitions(&self) -> Option<String> {
        let list = |resources: bool| -> Vec<&RawValue> {
            let on = self.wanted.values().filter(|(_, on)| *on);
            let on = on.filter(|(entry, _)| entry.is_resource() == resources);
            on.filter_map(|(entry, _)| serde_json::from_str(&entry.definition).ok())
                .collect()
        };
        let (tools, resources) = (list(false), list(true));
        if tools.is_empty() && resources.is_empty() {
            return None;
        }
        serde_json::to_string(&Definitions { tools, resources }).ok()
    }

    /// Returns true if the plan changes resources (`resources` is true) or tools (`resources` is false).
    fn touches(&self, resources: bool) -> bool {
        self.wanted
            .keys()
            .any(|(is_resource, _)| *is_resource == resources)
    }
}

#[derive(serde::Serialize)]
struct Definitions<'a> {
    tools: Vec<&'a RawValue>,
    resources: Vec<&'a RawValue>,
}

/// The changes of a checked activation, and its confirmation for the model.
struct CheckedActivation {
    said: AggregateReply,
    switches: Switches,
    /// The kinds of lists that clients must read again after the activation.
    changes: Vec<Change>,
}

/// Checks an activation. Each name and each pattern may be compared with all entries.
///
/// # Errors
///
/// The mistakes that [`plan`] finds.
fn check(
    shown: &CatalogueView<'_>,
    arguments: &[u8],
    options: &AggregateOptions,
) -> Result<CheckedActivation, String> {
    let plan = plan(shown, arguments, options)?;
    let mut said = AggregateReply::result(plan.done().into());
    if options.activation_schemas.unwrap_or(true) {
        said.further.extend(plan.definitions());
    }
    Ok(CheckedActivation {
        said,
        switches: plan.switches(shown.catalogue),
        changes: changes(plan.touches(false), plan.touches(true)),
    })
}

/// A call of `toolman_activate`.
pub(super) struct Activation {
    pub(super) shared: Arc<AggregatesState>,
    pub(super) live: Arc<RunningAggregate>,
    pub(super) active: Active,
    pub(super) principal: Option<Arc<str>>,
}

impl Activation {
    /// Changes the client's active set, and notifies the clients whose lists change.
    ///
    /// # Errors
    ///
    /// `overloaded`: [`heavy_work::run`] refuses the check because too much other work is waiting.
    pub(super) async fn run(
        self,
        snapshot: Snapshot,
        arguments: Bytes,
    ) -> Result<AggregateReply, CallError> {
        let aggregate = Arc::clone(&self.live.aggregate);
        let check =
            move || snapshot.look(|shown| check(shown, &arguments, &aggregate.spec.options));
        let checked = match heavy_work::run(&self.principal, check).await? {
            Ok(checked) => checked,
            Err(reason) => return Ok(AggregateReply::invalid(reason)),
        };
        let CheckedActivation {
            mut said,
            switches,
            changes,
        } = checked;
        let has_changed = match self.keep(&switches, &mut said).await {
            Ok(has_changed) => has_changed,
            Err(reason) => return Ok(AggregateReply::invalid(reason)),
        };
        let form = self.active.keep.form();
        let labels = [self.live.name.as_str(), form];
        self.shared
            .metrics
            .activations
            .with_label_values(&labels)
            .inc();
        if has_changed && self.live.aggregate.spec.options.notify_on_activation {
            let audience = &self.shared.home.audience;
            match &self.active.keep {
                ToolsetStorage::Session(session) => audience.tell(session, &changes).await,
                // A client without a session or shared set gets a new handle instead of a notification.
                ToolsetStorage::Handle | ToolsetStorage::Nowhere => {}
                ToolsetStorage::Principal(_) | ToolsetStorage::Process => {
                    for change in changes {
                        audience.announce(&self.live.name, change);
                    }
                }
            }
        }
        Ok(said)
    }

    /// Stores the client's changed active set. Returns true if it differs from the former set.
    async fn keep(&self, switches: &Switches, said: &mut AggregateReply) -> Result<bool, String> {
        let metrics = &self.shared.metrics;
        match &self.active.keep {
            ToolsetStorage::Session(session) => {
                let (turns, changes) = (&self.shared.turns, &self.shared.changes);
                let place = (&**session, &self.live.name);
                keep_in_session(turns, place, switches, changes, metrics).await
            }
            ToolsetStorage::Handle => {
                let after = switches.applied(&self.active.toolset)?;
                let (name, principal) = (&self.live.name, self.principal.as_deref());
                let sealed = self
                    .shared
                    .key
                    .seal_toolset(name, principal, &after.to_bytes());
                let handle = sealed.map_err(|error| error.to_string())?;
                let told = json!({
                    "toolset": handle,
                    "use": format!("?toolset=HANDLE in the address, or _meta[\"{}\"]", super::toolsets::HANDLE_KEY),
                });
                said.further.push(told.to_string());
                said.handle = Some(handle);
                Ok(true)
            }
            ToolsetStorage::Nowhere => Err(format!("nothing was changed: {NOWHERE}")),
            keep @ (ToolsetStorage::Principal(_) | ToolsetStorage::Process) => {
                self.live.sets.keep(keep, switches, metrics)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tooldock_sessions::session::Toolset;

    use super::*;

    /// The refusal of an activation of these tools in an empty catalogue.
    fn refused(tools_on: &[String]) -> String {
        let catalogue = Catalogue::default();
        let shown = CatalogueView {
            catalogue: &catalogue,
            toolset: &Toolset::default(),
            visible: &|_| true,
        };
        let options = AggregateOptions {
            activation_patterns: true,
            ..AggregateOptions::default()
        };
        let arguments = json!({
            "tools_on": tools_on, "tools_off": [], "resources_on": [], "resources_off": [],
        });
        plan(&shown, arguments.to_string().as_bytes(), &options).unwrap_err()
    }

    #[test]
    fn patterns_and_names_of_one_call_are_bounded() {
        let nested = format!("{}a{}", "{".repeat(100_000), "}".repeat(100_000));
        let refused_pattern = refused(&[nested]);
        assert!(
            refused_pattern.ends_with("it has more than 256 bytes"),
            "{refused_pattern}"
        );
        assert!(refused_pattern.len() < 200, "{refused_pattern}");
        assert!(refused(&vec!["a*".to_owned(); 100]).ends_with("90 more"));
        let too_many = refused(&vec!["a*".to_owned(); 101]);
        assert!(
            too_many.ends_with("one call may give 100 patterns"),
            "{too_many}"
        );
        let too_many = refused(&vec!["a".to_owned(); 10_001]);
        assert!(
            too_many.ends_with("one call may give 10000 names"),
            "{too_many}"
        );
    }
}
