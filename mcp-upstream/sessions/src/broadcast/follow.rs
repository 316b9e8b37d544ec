//! Announces the changes of namespaces when the registry publishes a new snapshot.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::value::RawValue;
use tooldock_base::names::NamespaceName;
use tooldock_base::tool::Tool;
use tooldock_workers::registry::{Namespace, Registry, Snapshot};

use super::{Audience, Change};

/// Whenever the registry publishes a new snapshot, notifies the clients of each namespace that has changed since the
/// previous snapshot. Snapshots in quick succession are announced together. Ends when the registry is dropped.
pub async fn follow(audience: Arc<Audience>, registry: Arc<Registry>) {
    let mut published = registry.subscribe();
    let mut seen = registry.snapshot();
    drop(registry);
    while published.changed().await.is_ok() {
        let next = Arc::clone(&published.borrow_and_update());
        for (name, change) in changes(&seen, &next) {
            audience.announce(name, change);
        }
        seen = next;
    }
}

/// The changes between two snapshots of the registry. For a namespace that only one of them contains, all its lists that are not
/// empty have changed.
fn changes<'a>(before: &'a Snapshot, after: &'a Snapshot) -> Vec<(&'a NamespaceName, Change)> {
    let all = before.namespaces.keys().chain(after.namespaces.keys());
    let names: BTreeSet<_> = all.collect();
    let mut found = Vec::new();
    for name in names {
        let old = before.namespaces.get(name);
        let new = after.namespaces.get(name);
        let untouched = old.zip(new).is_some_and(|(old, new)| Arc::ptr_eq(old, new));
        if untouched {
            continue;
        }
        if old.map(|it| it.content_hash) != new.map(|it| it.content_hash) || !same_tools(old, new) {
            found.push((name, Change::Tools));
        }
        if !prompts(old).eq(prompts(new)) {
            found.push((name, Change::Prompts));
        }
        if !resources(old).eq(resources(new)) || !templates(old).eq(templates(new)) {
            found.push((name, Change::Resources));
        }
    }
    found
}

type NamespaceState<'a> = Option<&'a Arc<Namespace>>;

fn same_tools(old: NamespaceState<'_>, new: NamespaceState<'_>) -> bool {
    let tools = |namespace| Option::into_iter(namespace).flat_map(|it: &Arc<Namespace>| &it.tools);
    tools(old).count() == tools(new).count()
        && tools(old)
            .zip(tools(new))
            .all(|(old, new)| Arc::ptr_eq(old, new) || same_tool(old, new))
}

/// Returns true if both tools have the same entry in the result of `tools/list`.
fn same_tool(old: &Tool, new: &Tool) -> bool {
    let raw = |value: &Option<Arc<RawValue>>| value.as_ref().map(|it| it.get().to_owned());
    (&old.name, &old.title, &old.description) == (&new.name, &new.title, &new.description)
        && old.input_schema.get() == new.input_schema.get()
        && raw(&old.output_schema) == raw(&new.output_schema)
        && raw(&old.annotations) == raw(&new.annotations)
        && raw(&old.icons) == raw(&new.icons)
        && raw(&old.meta) == raw(&new.meta)
}

fn prompts(namespace: NamespaceState<'_>) -> impl Iterator<Item = &str> {
    let all = namespace.into_iter().flat_map(|it| &it.prompts);
    all.map(|it| it.definition.get())
}

fn resources(namespace: NamespaceState<'_>) -> impl Iterator<Item = &str> {
    let all = namespace.into_iter().flat_map(|it| &it.resources);
    all.map(|it| it.definition.get())
}

fn templates(namespace: NamespaceState<'_>) -> impl Iterator<Item = &str> {
    let all = namespace.into_iter().flat_map(|it| &it.resource_templates);
    all.map(|it| it.definition.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{namespace, tool};

    fn snapshot(namespaces: Vec<Arc<Namespace>>) -> Snapshot {
        Snapshot {
            generation: 1,
            namespaces: namespaces
                .into_iter()
                .map(|it| (it.name.clone(), it))
                .collect(),
        }
    }

    fn found(before: &Snapshot, after: &Snapshot) -> Vec<(String, Change)> {
        let found = changes(before, after);
        found
            .into_iter()
            .map(|(name, change)| (name.to_string(), change))
            .collect()
    }

    #[test]
    fn only_what_changed_is_announced() {
        let kept = Arc::new(namespace("kept"));
        let same = || Arc::new(namespace("same"));
        let mut edited = namespace("edited");
        let before = snapshot(vec![
            Arc::clone(&kept),
            same(),
            Arc::new(namespace("edited")),
            Arc::new(namespace("gone")),
        ]);
        edited.content_hash = [1; 32];
        let after = snapshot(vec![
            kept,
            same(),
            Arc::new(edited),
            Arc::new(namespace("new")),
        ]);
        let tools = |name: &str| (name.to_owned(), Change::Tools);
        assert_eq!(
            found(&before, &after),
            [tools("edited"), tools("gone"), tools("new")]
        );
        assert_eq!(found(&before, &before), []);
    }

    #[test]
    fn a_list_that_differs_is_announced_even_if_the_files_did_not_change() {
        let before = snapshot(vec![Arc::new(namespace("ns"))]);
        let mut tools = namespace("ns");
        tools.tools[0] = tool(serde_json::json!({ "name": "say_hello", "inputSchema": {} }));
        let after = snapshot(vec![Arc::new(tools)]);
        assert_eq!(found(&before, &after), [("ns".to_owned(), Change::Tools)]);

        let mut lists = namespace("ns");
        let definition = r#"{"definition":{"name":"p"},"filename":"x.py","context":false}"#;
        lists.prompts = vec![serde_json::from_str(definition).expect("a prompt")];
        let definition = r#"{"definition":{"uriTemplate":"t://{x}","name":"t"},"filename":"x.py","context":false}"#;
        lists.resource_templates = vec![serde_json::from_str(definition).expect("a template")];
        let after = snapshot(vec![Arc::new(lists)]);
        let wanted = [Change::Prompts, Change::Resources].map(|change| ("ns".to_owned(), change));
        assert_eq!(found(&before, &after), wanted);
    }
}
