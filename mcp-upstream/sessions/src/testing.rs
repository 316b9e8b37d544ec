//! Fixtures that tests of this crate and of others share: callers, namespaces, an audience, a store in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tooldock_base::config::Limits;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::gate::Gate;
use tooldock_base::grant::{Grant, GrantSource};
use tooldock_base::key_maker::KeyMaker;
use tooldock_base::parking::Parking;
use tooldock_base::policy::ToolPolicy;
use tooldock_base::scope::ScopeTable;
use tooldock_base::tool::Tool;
use tooldock_workers::registry::{self, Namespace, SecretsStatus};

use crate::broadcast::Audience;
use crate::caller::{Caller, Visibility};
use crate::profile::Profile;
use crate::session::config::EventLogConfig;
use crate::stream::{EventLog, KeepAlive, StreamMetrics};

pub mod schedule;
pub mod shadow;

/// A caller of the namespace `shared` on the core port.
pub fn caller() -> Caller {
    Caller {
        namespace: Some("shared".parse().expect("a name")),
        principal: Some(Arc::from("tester")),
        client: "127.0.0.1".parse().expect("an address"),
        request_id: Arc::from("r-1"),
        profile: Arc::new(Profile::core()),
        manager: false,
        headers: None,
        visibility: Visibility::All,
        grant: None,
        maker: KeyMaker::default(),
        relay: None,
        toolset: None,
        note: None,
        key_limits: None,
        budget: None,
        status_only: false,
        trace: None,
    }
}

/// The usual caller with an API key of these built-in scopes.
pub fn caller_with_scopes(scopes: &[&str]) -> Caller {
    let tools = ScopeTable::default().compile(scopes);
    let source = GrantSource::Key {
        id: Arc::from("k1"),
    };
    Caller {
        grant: Some(Arc::new(Grant {
            tools: Arc::new(tools.expect("built-in scopes")),
            source,
        })),
        ..caller()
    }
}

/// A tool, from its declaration as JSON.
pub fn tool(declaration: Value) -> Arc<Tool> {
    Arc::new(serde_json::from_value(declaration).expect("a tool"))
}

fn named_tool(name: &str) -> Arc<Tool> {
    tool(json!({
        "name": name, "description": "", "filename": "tools.py",
        "inputSchema": { "type": "object" },
    }))
}

/// A namespace with this name and a tool for each behaviour of the fake backend.
pub fn namespace(name: &str) -> Namespace {
    let mut tools = vec![tool(json!({
        "name": "say_hello", "title": "Say Hello", "description": "Greet \"someone\".",
        "inputSchema": { "type": "object", "properties": { "name": { "type": "string", "default": "World" } } },
        "outputSchema": { "type": "object" }, "annotations": { "readOnlyHint": true },
        "_meta": { "n": 1 }, "filename": "hello.py",
    }))];
    tools.extend(
        [
            "echo",
            "value",
            "image",
            "hang",
            "invalid_arguments",
            "dependency_error",
            "internal_error",
            "worker_unavailable",
            "overloaded",
            "execution_timeout",
            "secret_tool",
        ]
        .map(named_tool),
    );
    for name in ["talk", "missing_capability"] {
        tools.push(tool(json!({
            "name": name, "description": "", "filename": "tools.py", "context": true,
            "inputSchema": { "type": "object" }, "icons": [{ "src": "data:," }],
        })));
    }
    let limits = Limits {
        tools_deny: vec!["secret_*".into()],
        ..Limits::default()
    };
    Namespace {
        name: name.parse().expect("a name"),
        description: format!("Tools of {name}"),
        version: "1.2.3".into(),
        secrets: Vec::new(),
        secrets_status: SecretsStatus::NoSecretsNeeded,
        has_requirements: false,
        policy: ToolPolicy::new(&limits).expect("valid patterns"),
        tool_limits: BTreeMap::new(),
        gate: Arc::new(Gate::new(limits.max_concurrency.local(), limits.queue)),
        parked: Arc::new(Parking::new(limits.max_parked)),
        limits,
        tools,
        resources: Vec::new(),
        resource_templates: Vec::new(),
        prompts: Vec::new(),
        completions: false,
        files: Vec::new(),
        issues: Vec::new(),
        upstream: registry::UpstreamKind::Empty,
        content_hash: [0; 32],
        attached: registry::Attachment::default(),
        recovering: std::sync::Weak::new(),
    }
}

/// A namespace with resources, templates, prompts and completion in addition to the tools.
pub fn full(name: &str) -> Namespace {
    fn from<T: serde::de::DeserializeOwned>(definition: Value, context: bool) -> Arc<T> {
        let line = json!({ "definition": definition, "filename": "r.py", "context": context });
        // Parsed from text: raw values cannot be taken from a parsed value.
        Arc::new(serde_json::from_str(&line.to_string()).expect("a definition"))
    }
    let resource = |uri: &str, context| from(json!({ "uri": uri, "name": uri }), context);
    let template = json!({ "uriTemplate": "test://item/{id}", "name": "item" });
    let prompt = |name: &str, context| from(json!({ "name": name, "x": 1 }), context);
    Namespace {
        resources: vec![
            resource("test://static", false),
            resource("test://talk", true),
        ],
        resource_templates: vec![from(template, false)],
        prompts: vec![
            prompt("greet", false),
            prompt("talk", true),
            prompt("strict", false),
        ],
        completions: true,
        ..namespace(name)
    }
}

/// A namespace that failed to start.
pub fn broken(name: &str) -> Namespace {
    Namespace {
        tools: Vec::new(),
        upstream: registry::UpstreamKind::Failed(CallError::new(
            CallErrorCode::DependencyError,
            "no such package",
        )),
        ..namespace(name)
    }
}

/// An audience without members, with the timer and the log of its streams.
pub fn audience() -> (Arc<KeepAlive>, Arc<EventLog>, Arc<Audience>) {
    let metrics = StreamMetrics::unregistered();
    let keep_alive = KeepAlive::measured(Duration::from_secs(15), Arc::clone(&metrics));
    let log = EventLog::new(EventLogConfig::default(), Arc::clone(&keep_alive), metrics);
    let log = Arc::new(log);
    let audience = Audience::new(Arc::clone(&log));
    (keep_alive, log, audience)
}
