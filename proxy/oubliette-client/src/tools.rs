//! The tools under the names that the MCP client sees: `oubliette_<name>` for tools of the host, `<caller_id>_<name>` for tools
//! of the caller.

use std::fmt::Write;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::frame::ToolDescription;
use crate::warning;

/// Prefix of the names of the host's tools.
const PREFIX: &str = "oubliette";
/// Maximum number of tools that are taken from one list of the host; further ones are ignored.
const TOOLS_MAX: usize = 2000;

/// All tools of the host, and of the caller that started this container.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tools {
    host: Vec<ToolDescription>,
    caller: Option<(String, Vec<ToolDescription>)>,
}

/// The owner of a tool.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ToolOwner {
    /// The tool belongs to the host.
    Host,
    /// The tool belongs to the caller with this id.
    Caller(String),
}

impl Tools {
    /// Replaces the host's tools. Returns true if the list has changed.
    pub(crate) fn set_host(&mut self, tools: Vec<ToolDescription>) -> bool {
        self.change(|all| all.host = bounded(tools))
    }

    /// Replaces the caller's tools. Returns true if the list has changed.
    pub(crate) fn set_caller(&mut self, caller: String, tools: Vec<ToolDescription>) -> bool {
        self.change(|all| all.caller = Some((caller, bounded(tools))))
    }

    fn change(&mut self, change: impl FnOnce(&mut Self)) -> bool {
        let before = self.list();
        change(self);
        self.list() != before
    }

    /// Returns all tools by the names that clients see. If two tools have the same name, only the first is offered.
    fn named(&self) -> Vec<(String, ToolOwner, &ToolDescription)> {
        let host = self.host.iter().map(|tool| {
            let name = format!("{PREFIX}_{}", tool.name);
            (name, ToolOwner::Host, tool)
        });
        let caller = self.caller.iter().flat_map(|(caller, tools)| {
            tools.iter().map(move |tool| {
                let name = format!("{caller}_{}", tool.name);
                (name, ToolOwner::Caller(caller.clone()), tool)
            })
        });
        let mut seen = std::collections::HashSet::new();
        let all = host.chain(caller);
        all.filter(|(name, ..)| seen.insert(name.clone())).collect()
    }

    /// Returns the tools for `tools/list`: a JSON array.
    pub(crate) fn list(&self) -> String {
        let mut list = String::from("[");
        for (name, _, tool) in self.named() {
            if list.len() > 1 {
                list.push(',');
            }
            let (name, description) = (Value::from(name), Value::from(&*tool.description));
            let schema = tool.schema.as_deref().map(RawValue::get);
            // MCP requires that the schema is a JSON object; any other value is replaced.
            let schema = schema.filter(|schema| schema.starts_with('{'));
            let schema = schema.unwrap_or(r#"{"type":"object"}"#);
            let _ = write!(
                list,
                r#"{{"name":{name},"description":{description},"inputSchema":{schema}}}"#
            );
        }
        list.push(']');
        list
    }

    /// Finds a tool by the name that the client sees. Returns the tool's owner and its name there.
    pub(crate) fn find(&self, name: &str) -> Option<(ToolOwner, String)> {
        let named = self.named();
        let found = named.into_iter().find(|(known, ..)| known == name)?;
        Some((found.1, found.2.name.clone()))
    }
}

fn bounded(mut tools: Vec<ToolDescription>) -> Vec<ToolDescription> {
    if tools.len() > TOOLS_MAX {
        warning!(
            "{} tools are too many: the first {TOOLS_MAX} are offered",
            tools.len()
        );
        tools.truncate(TOOLS_MAX);
    }
    tools
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(names: &[&str]) -> Vec<ToolDescription> {
        let of = |name: &&str| ToolDescription {
            name: (*name).to_owned(),
            description: "d \"q\"".to_owned(),
            schema: serde_json::from_str(r#"{"type":"object","n":1.50}"#).ok(),
        };
        names.iter().map(of).collect()
    }

    #[test]
    fn tools_are_listed_under_their_owners_name_with_their_own_schema() {
        let mut tools = Tools::default();
        assert!(tools.set_host(described(&["project_create"])));
        assert!(tools.set_caller("boss".into(), described(&["ask"])));
        assert!(tools.list().contains("1.50"));
        let list: Value = serde_json::from_str(&tools.list()).expect("JSON");
        assert_eq!(list[0]["name"], "oubliette_project_create");
        assert_eq!(list[0]["description"], "d \"q\"");
        assert_eq!(list[1]["name"], "boss_ask");
        let owner = |name| tools.find(name);
        assert_eq!(
            owner("oubliette_project_create"),
            Some((ToolOwner::Host, "project_create".into()))
        );
        assert_eq!(
            owner("boss_ask"),
            Some((ToolOwner::Caller("boss".into()), "ask".into()))
        );
        assert_eq!(owner("project_create"), None);
    }

    #[test]
    fn a_change_is_one_that_the_client_can_see() {
        let mut tools = Tools::default();
        assert!(!tools.set_host(Vec::new()));
        assert!(tools.set_host(described(&["a"])));
        assert!(!tools.set_host(described(&["a"])));
        // A caller that takes the host's prefix takes none of its tools.
        assert!(!tools.set_caller("oubliette".into(), described(&["a"])));
        assert_eq!(
            tools.find("oubliette_a").map(|it| it.0),
            Some(ToolOwner::Host)
        );
    }
}
