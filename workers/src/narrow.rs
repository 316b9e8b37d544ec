//! Restricts the configuration by `$DATA/config.yaml`. Tool code can write to that file, so it can only remove rights that the
//! operator's own file grants.
//!
//! | key | value in force |
//! |---|---|
//! | `principals`, `tools_allow`, `tools_deny` | allowed if both the merged lists and those of the operator's file alone allow |
//! | `ceilings` | the lower of both |
//! | numbers and times of limits | at most the ceiling, or the operator's number if that is higher |
//! | `aliases` | those of the operator's file |
//! | `mask_errors` | on if the operator's file sets it |
//! | `global_secrets` | `declared` if the operator's file sets it |
//! | `sandbox`, `pins` | the operator's, unless the merged one is at least as strict |
//! | `env_allowed` | the variables that both files name |
//! | a server of the operator's file | as in the operator's file, but the data file may disable it and lower its limits |
//! | `toolman.NAME` | the operator's file if both files define an aggregate of that name |
//! | servers, aggregates of the data file | marked ([`Source::DataFile`]), under other names ([`tooldock_base::precedence`]) |
//!
//! The lists cannot be merged into one list, because the intersection of two patterns cannot be written as a pattern. So the
//! operator's lists are kept in addition to the merged ones ([`NamespacesConfig::operator`]), and
//! [`tooldock_base::policy::ToolPolicy`] checks both.

mod fit;

use std::collections::BTreeSet;
use std::sync::Arc;

use tooldock_base::bounds::BoundedValue;
use tooldock_base::config::{
    Ceilings, GlobalSecrets, Limits, LimitsPatch, NamespacesConfig, OperatorLimits,
};
use tooldock_base::names::NamespaceName;
use tooldock_base::policy::covers;
use tooldock_base::precedence::Source;

use crate::aggregate::AggregatesConfig;
use crate::external::StdioServerConfig;
use crate::servers::ServersConfig;

pub use fit::{fit, selects_tools};

/// Restricts a configuration that was merged from the operator's file and the data file to the operator's limits. Returns the
/// refused changes, each as a sentence that begins with the key.
pub fn narrow(
    namespaces: &mut NamespacesConfig,
    servers: &mut ServersConfig,
    operator: &NamespacesConfig,
    (operators_servers, operators_aggregates): (&ServersConfig, &AggregatesConfig),
) -> Vec<String> {
    let mut vain = Vec::new();
    ceilings(&mut namespaces.ceilings, &operator.ceilings, &mut vain);
    namespaces.starter &= operator.starter;
    namespaces.env_allowed.retain(|name| {
        let allowed = operator.env_allowed.contains(name);
        if !allowed {
            vain.push(format!(
                "namespaces.env_allowed: {name:?} is not in the operator's list"
            ));
        }
        allowed
    });
    let mut narrowing = Narrowing {
        ceilings: namespaces.ceilings.patch(),
        defaults: &operator.defaults,
        vain,
    };
    narrowing.defaults(&mut namespaces.defaults);
    let nothing = LimitsPatch::default();
    for (name, patch) in &mut namespaces.overrides {
        let server = limits_of(operators_servers, name);
        let own = operator.overrides.get(name);
        let key = format!("namespaces.overrides.{name}");
        let aliases = own.map(|own| &*own.aliases).unwrap_or_default();
        if patch.aliases != aliases {
            narrowing.say(
                &format!("{key}.aliases"),
                "stay as the operator's file has them",
            );
            patch.aliases = aliases.to_vec();
        }
        narrowing.patch(&key, patch, own.unwrap_or(&nothing), server.as_ref());
    }
    for (name, server) in &mut servers.stdio {
        let own = operators_servers.stdio.get(name);
        let key = format!("upstreams.stdio.{name}");
        match own {
            Some(own) => {
                let before = narrowing.vain.len();
                narrowing.server(&key, server, own);
                let said = narrowing.vain[before..].to_vec();
                if !said.is_empty() {
                    servers.refused.insert(name.clone(), said);
                }
            }
            None => {
                server.source = Source::DataFile;
                server.limits = server.own_limits();
                server.sandbox = None;
                server.pins = None;
                if let Some(sandbox) = &mut server.limits.sandbox {
                    sandbox.by_namespace = true;
                }
            }
        }
        let limits = own.map_or(&nothing, |own| &own.limits);
        narrowing.patch(&format!("{key}.limits"), &mut server.limits, limits, None);
    }
    let vain = narrowing.vain;
    let names = operators_servers.stdio.keys();
    let names = names.chain(operators_servers.remote.keys());
    let names = names.chain(operators_servers.openapi.keys());
    let names = names.chain(operators_aggregates.keys());
    let names: BTreeSet<_> = names.cloned().collect();
    let limits = names.iter().filter_map(|name| {
        let limits = limits_of(operators_servers, name)?;
        Some((name.clone(), limits))
    });
    namespaces.operator = Some(Arc::new(OperatorLimits {
        namespaces: operator.clone(),
        servers: limits.collect(),
        names: names.clone(),
    }));
    vain
}

/// Resets the aggregates of the operator's file to their definitions there, and marks the aggregates that only the data file
/// defines. Returns the refused changes, as [`narrow`] does.
pub fn narrow_aggregates(
    aggregates: &mut AggregatesConfig,
    operator: &AggregatesConfig,
) -> Vec<String> {
    let mut vain = Vec::new();
    for (name, aggregate) in aggregates {
        match operator.get(name) {
            Some(own) if own == aggregate => {}
            Some(own) => {
                let own_file = own.config.display();
                vain.push(format!("toolman.{name}.config: stays {own_file}"));
                aggregate.clone_from(own);
            }
            None => aggregate.source = Source::DataFile,
        }
    }
    vain
}

/// The configured limits of the server with that name.
fn limits_of(servers: &ServersConfig, name: &NamespaceName) -> Option<LimitsPatch> {
    let stdio = servers.stdio.get(name).map(|server| server.own_limits());
    let over_http = || servers.over_http().find(|it| it.name == name);
    stdio.or_else(|| over_http().map(|it| it.config.own_limits()))
}

fn ceilings(merged: &mut Ceilings, operator: &Ceilings, vain: &mut Vec<String>) {
    fn lower<T: BoundedValue>(key: &str, merged: &mut T, operator: T, vain: &mut Vec<String>) {
        if *merged > operator {
            let (asked, applies) = (merged.spelled(), operator.spelled());
            vain.push(format!(
                "namespaces.ceilings.{key}: {asked} is above the operator's; {applies} applies"
            ));
            *merged = operator;
        }
    }
    // Every field is named, so that the compiler reports an error here when a ceiling is added.
    let Ceilings {
        timeout,
        max_concurrency,
        max_result,
        sync_concurrency,
        processes,
        sandbox,
    } = merged;
    if !operator.sandbox.covers(sandbox) {
        vain.push("namespaces.ceilings.sandbox: stays as the operator's file has it".to_owned());
        sandbox.clone_from(&operator.sandbox);
    }
    lower("timeout", timeout, operator.timeout, vain);
    let most = operator.max_concurrency;
    lower("max_concurrency", max_concurrency, most, vain);
    lower("max_result", max_result, operator.max_result, vain);
    let most = operator.sync_concurrency;
    lower("sync_concurrency", sync_concurrency, most, vain);
    lower("processes", processes, operator.processes, vain);
}

struct Narrowing<'a> {
    ceilings: LimitsPatch,
    /// The operator's default limits.
    defaults: &'a Limits,
    vain: Vec<String>,
}

impl Narrowing<'_> {
    /// Resets a server to its entry in the operator's file. The data file can only set `enabled: false` and limits.
    fn server(&mut self, key: &str, merged: &mut StdioServerConfig, own: &StdioServerConfig) {
        let enabled = merged.enabled && own.enabled;
        if merged.enabled && !own.enabled {
            self.say(&format!("{key}.enabled"), "stays false");
        }
        let limits = std::mem::take(&mut merged.limits);
        let same = StdioServerConfig {
            enabled: merged.enabled,
            limits: LimitsPatch::default(),
            ..own.clone()
        };
        if *merged != same {
            self.say(
                key,
                "stays as the operator's file has it; only enabled and limits count here",
            );
        }
        *merged = StdioServerConfig {
            enabled,
            limits,
            ..own.clone()
        };
    }

    fn defaults(&mut self, merged: &mut Limits) {
        let mut patch = merged.patch();
        let operator = self.defaults.patch();
        self.patch("namespaces.defaults", &mut patch, &operator, None);
        merged.apply(&patch);
    }

    /// Restricts the limits in `merged`, whose configuration key is `at`. `operator` are the operator's limits under that key.
    /// `other` are the operator's limits under another key for the same namespace; they apply where `operator` sets no value.
    fn patch(
        &mut self,
        at: &str,
        merged: &mut LimitsPatch,
        operator: &LimitsPatch,
        other: Option<&LimitsPatch>,
    ) {
        merged.cap(operator, &self.ceilings, |key, what| {
            self.vain.push(format!("{at}.{key}: {what}"));
        });
        let key = |name: &str| format!("{at}.{name}");

        let masked = operator
            .mask_errors
            .or_else(|| other.and_then(|other| other.mask_errors))
            .unwrap_or(self.defaults.mask_errors);
        if merged.mask_errors == Some(false) && masked {
            self.say(&key("mask_errors"), "stays true");
            merged.mask_errors = operator.mask_errors;
        }
        let global = operator.global_secrets;
        let global = global.unwrap_or(self.defaults.global_secrets);
        if merged.global_secrets == Some(GlobalSecrets::All) && global == GlobalSecrets::Declared {
            self.say(&key("global_secrets"), "stays declared");
            merged.global_secrets = operator.global_secrets;
        }

        let sandbox = operator
            .sandbox
            .as_ref()
            .or_else(|| other.and_then(|other| other.sandbox.as_ref()))
            .unwrap_or(&self.defaults.sandbox);
        if merged
            .sandbox
            .as_ref()
            .is_some_and(|it| !sandbox.covers(it))
        {
            self.say(&key("sandbox"), "stays as the operator's file has it");
            merged.sandbox.clone_from(&operator.sandbox);
        }

        let pins = operator
            .pins
            .or_else(|| other.and_then(|other| other.pins))
            .unwrap_or(self.defaults.pins);
        if merged.pins.is_some_and(|it| it < pins) {
            self.say(&key("pins"), &format!("stays {}", pins.as_str()));
            merged.pins = operator.pins;
        }

        let of = |list: fn(&LimitsPatch) -> &Option<Vec<String>>, default| {
            let said = list(operator).as_ref();
            said.or_else(|| other.and_then(|other| list(other).as_ref()))
                .unwrap_or(default)
                .clone()
        };
        let allowed = of(|it| &it.tools_allow, &self.defaults.tools_allow);
        self.allowing(&key("tools_allow"), merged.tools_allow.as_ref(), &allowed);
        let allowed = of(|it| &it.principals, &self.defaults.principals);
        self.allowing(&key("principals"), merged.principals.as_ref(), &allowed);
        let denied = of(|it| &it.tools_deny, &self.defaults.tools_deny);
        self.denying(&key("tools_deny"), merged.tools_deny.as_ref(), &denied);
    }

    fn allowing(&mut self, key: &str, said: Option<&Vec<String>>, operator: &[String]) {
        for pattern in said.into_iter().flatten() {
            if !covers(operator, pattern) {
                self.say(
                    key,
                    &format!("{pattern:?} counts only as far as the operator's list goes"),
                );
            }
        }
    }

    fn denying(&mut self, key: &str, said: Option<&Vec<String>>, operator: &[String]) {
        let Some(said) = said else { return };
        for pattern in operator.iter().filter(|pattern| !covers(said, pattern)) {
            self.say(key, &format!("the operator's {pattern:?} stays denied"));
        }
    }

    fn say(&mut self, key: &str, what: &str) {
        self.vain.push(format!("{key}: {what}"));
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use tooldock_base::config::{Concurrency, PinMode, QUEUE_MAX, SandboxMode};
    use tooldock_base::policy::ToolPolicy;
    use tooldock_base::yaml;
    use tooldock_base::yaml::Value;

    use super::*;
    use crate::manifest::effective_limits;

    /// A merged configuration, and the refused changes.
    struct NarrowedConfig {
        namespaces: NamespacesConfig,
        servers: ServersConfig,
        vain: Vec<String>,
    }

    /// `namespaces:` and `upstreams.stdio:` of both files.
    fn narrowed(operator: [&str; 2], data_file: [&str; 2]) -> NarrowedConfig {
        fn parsed<T: DeserializeOwned>(below: &str, over: &str) -> T {
            let mut tree = yaml::from_str(below).expect(below);
            merge(&mut tree, yaml::from_str(over).expect(over));
            yaml::from_value(tree).expect(over)
        }
        let [namespaces, servers] = operator;
        let mut narrowed = NarrowedConfig {
            namespaces: parsed(namespaces, data_file[0]),
            servers: ServersConfig {
                stdio: parsed(servers, data_file[1]),
                ..ServersConfig::default()
            },
            vain: Vec::new(),
        };
        narrowed.vain = narrow(
            &mut narrowed.namespaces,
            &mut narrowed.servers,
            &parsed(namespaces, "{}"),
            (
                &ServersConfig {
                    stdio: parsed(servers, "{}"),
                    ..ServersConfig::default()
                },
                &AggregatesConfig::new(),
            ),
        );
        narrowed
    }

    /// Merges as the configuration is merged.
    fn merge(below: &mut Value, over: Value) {
        match (below, over) {
            (Value::Mapping(below), Value::Mapping(over)) => {
                for (key, value) in over {
                    merge(below.entry(key).or_insert(Value::Null), value);
                }
            }
            (below, over) => *below = over,
        }
    }

    impl NarrowedConfig {
        fn policy(&self, name: &str) -> ToolPolicy {
            let name: NamespaceName = name.parse().expect("a name");
            let nothing = LimitsPatch::default();
            let server = self
                .servers
                .stdio
                .get(&name)
                .map_or(&nothing, |it| &it.limits);
            let (limits, ..) = effective_limits(server, None, &name, &self.namespaces);
            ToolPolicy::new(&limits).expect("patterns")
        }
    }

    #[test]
    fn aliases_are_those_of_the_operators_file() {
        let found = narrowed(
            [
                "{ overrides: { a: { aliases: [/a/mcp] }, b: { aliases: [/b] } } }",
                "{}",
            ],
            [
                "{ overrides: { a: { aliases: [/stolen] }, c: { aliases: [/c] }, b: { queue: 1 } } }",
                "{}",
            ],
        );
        let aliases = |name: &str| {
            let name: NamespaceName = name.parse().expect("a name");
            found.namespaces.overrides[&name].aliases.join(",")
        };
        assert_eq!(
            (aliases("a"), aliases("b"), aliases("c")),
            ("/a/mcp".into(), "/b".into(), String::new())
        );
        assert_eq!(
            found.vain,
            [
                "namespaces.overrides.a.aliases: stay as the operator's file has them",
                "namespaces.overrides.c.aliases: stay as the operator's file has them",
            ]
        );
    }

    #[test]
    fn nobody_is_let_in_whom_the_operator_keeps_out_by_whatever_key() {
        let operator = [
            "{ defaults: { principals: [admin] }, overrides: { vault: { principals: ['ops-*'] } } }",
            "{ mine: { command: x, limits: { principals: [ci] } } }",
        ];
        for (merged, name, let_in) in [
            (
                ["{ defaults: { principals: ['*'] } }", "{}"],
                "tools",
                "admin",
            ),
            (
                ["{ overrides: { tools: { principals: ['*'] } } }", "{}"],
                "tools",
                "admin",
            ),
            (
                ["{ overrides: { vault: { principals: ['*'] } } }", "{}"],
                "vault",
                "ops-1",
            ),
            (
                ["{ overrides: { mine: { principals: ['*'] } } }", "{}"],
                "mine",
                "ci",
            ),
            (
                [
                    "{}",
                    "{ mine: { command: x, limits: { principals: ['*'] } } }",
                ],
                "mine",
                "ci",
            ),
            (
                [
                    "{}",
                    "{ new: { command: x, limits: { principals: ['*'] } } }",
                ],
                "new",
                "admin",
            ),
        ] {
            let narrowed = narrowed(operator, merged);
            let policy = narrowed.policy(name);
            for principal in ["guest", "admin", "ops-1", "ci"] {
                assert_eq!(
                    policy.allows_principal(principal),
                    principal == let_in,
                    "{merged:?}: {principal}"
                );
            }
            assert_eq!(narrowed.vain.len(), 1, "{:?}", narrowed.vain);
            assert!(narrowed.vain[0].contains("principals: \"*\" counts only as far"));
        }
    }

    #[test]
    fn no_tool_appears_that_the_operator_denies_or_does_not_allow() {
        let operator = "{ defaults: { tools_deny: ['delete_*'] }, overrides: { db: { tools_allow: ['get_*'] } } }";
        let merged = "{ defaults: { tools_deny: ['get_b'] }, overrides: { db: { tools_allow: ['*'], tools_deny: [] } } }";
        let narrowed = narrowed([operator, "{}"], [merged, "{}"]);
        let shown = |name: &str| {
            let policy = narrowed.policy(name);
            let tools = ["get_a", "get_b", "delete_a", "put"];
            tools
                .into_iter()
                .filter(|it| policy.allows_tool(it))
                .collect::<Vec<_>>()
        };
        assert_eq!(shown("db"), ["get_a", "get_b"]);
        assert_eq!(shown("other"), ["get_a", "put"]);
        let keys: Vec<_> = narrowed
            .vain
            .iter()
            .filter_map(|it| it.split_once(": "))
            .collect();
        assert_eq!(
            keys,
            [
                (
                    "namespaces.defaults.tools_deny",
                    "the operator's \"delete_*\" stays denied"
                ),
                (
                    "namespaces.overrides.db.tools_allow",
                    "\"*\" counts only as far as the operator's list goes"
                ),
                (
                    "namespaces.overrides.db.tools_deny",
                    "the operator's \"delete_*\" stays denied"
                ),
            ]
        );
    }

    #[test]
    fn what_takes_away_is_in_force_without_a_word() {
        let operator = "{ defaults: { principals: [admin, 'ci-*'] } }";
        let merged = "{ defaults: { principals: [ci-1], tools_deny: ['drop_*'], timeout: 1s }, \
             ceilings: { timeout: 2s } }";
        let narrowed = narrowed([operator, "{}"], [merged, "{}"]);
        let policy = narrowed.policy("any");
        assert!(policy.allows_principal("ci-1") && !policy.allows_principal("admin"));
        assert!(policy.allows_tool("get") && !policy.allows_tool("drop_all"));
        assert_eq!(narrowed.namespaces.ceilings.timeout.as_secs(), 2);
        assert_eq!(narrowed.vain, Vec::<String>::new());
    }

    #[test]
    fn numbers_go_up_to_the_ceilings_and_ceilings_only_down() {
        let operator = [
            "{ defaults: { timeout: 20m }, ceilings: { max_concurrency: 10 }, overrides: { a: { processes: 9 } } }",
            "{ s: { command: x, limits: { timeout: 15m }, enabled: false } }",
        ];
        let merged = [
            "{ defaults: { timeout: 1h, queue: 100000, max_result: 1MiB }, \
               ceilings: { max_concurrency: 5000, processes: 2 }, \
               overrides: { a: { processes: 12, max_concurrency: 11 }, b: { processes: 3, tools: { t: { timeout: 1h } } } } }",
            "{ s: { limits: { timeout: 16m }, enabled: true }, n: { command: x, limits: { timeout: 16m } } }",
        ];
        let narrowed = narrowed(operator, merged);
        let found = &narrowed.namespaces;
        assert_eq!(found.ceilings.max_concurrency, 10);
        assert_eq!(found.ceilings.processes, 2);
        assert_eq!(found.defaults.timeout.as_secs(), 20 * 60);
        assert_eq!(found.defaults.queue, QUEUE_MAX);
        assert_eq!(found.defaults.max_result, bytesize::ByteSize::mib(1));
        let of = |name: &str| &found.overrides[&name.parse::<NamespaceName>().unwrap()];
        assert_eq!(
            (of("a").processes, of("a").max_concurrency),
            (Some(9), Some(Concurrency::Calls(10)))
        );
        assert_eq!(of("b").processes, Some(2));
        assert_eq!(of("b").tools["t"].timeout.unwrap().as_secs(), 600);
        let server = |name: &str| &narrowed.servers.stdio[&name.parse::<NamespaceName>().unwrap()];
        assert_eq!(server("s").limits.timeout.unwrap().as_secs(), 15 * 60);
        assert_eq!(server("n").limits.timeout.unwrap().as_secs(), 600);
        assert!(!server("s").enabled && server("n").enabled);
        assert_eq!(narrowed.vain.len(), 10, "{:#?}", narrowed.vain);
    }

    #[test]
    fn errors_stay_masked_and_no_variable_of_the_gateway_is_let_out() {
        let operator = "{ env_allowed: [A, B], defaults: { mask_errors: true }, overrides: { open: { mask_errors: false } } }";
        let data_file = "{ env_allowed: [B, AWS_SECRET], defaults: { mask_errors: false }, \
             overrides: { open: { mask_errors: false }, other: { mask_errors: false } } }";
        let narrowed = narrowed([operator, "{}"], [data_file, "{}"]);
        assert_eq!(narrowed.namespaces.env_allowed, ["B"]);
        let masked = |name: &str| {
            let name: NamespaceName = name.parse().expect("a name");
            let nothing = LimitsPatch::default();
            effective_limits(&nothing, None, &name, &narrowed.namespaces)
                .0
                .mask_errors
        };
        assert_eq!(
            [masked("open"), masked("other"), masked("any")],
            [false, true, true]
        );
        assert_eq!(narrowed.vain.len(), 3, "{:?}", narrowed.vain);
    }

    #[test]
    fn global_secrets_stay_with_namespaces_that_declare_them() {
        let operator = "{ defaults: { global_secrets: declared }, overrides: { open: { global_secrets: all } } }";
        let data_file =
            "{ defaults: { global_secrets: all }, overrides: { other: { global_secrets: all } } }";
        let narrowed = narrowed([operator, "{}"], [data_file, "{}"]);
        let global = |name: &str, asks: Option<GlobalSecrets>| {
            let name: NamespaceName = name.parse().expect("a name");
            let own = LimitsPatch {
                global_secrets: asks,
                ..LimitsPatch::default()
            };
            let file = Some("tooldock.yaml");
            let (limits, _, issues) = effective_limits(&own, file, &name, &narrowed.namespaces);
            (limits.global_secrets, issues.len())
        };
        use GlobalSecrets::{All, Declared};
        assert_eq!(global("open", None), (All, 0));
        assert_eq!(global("open", Some(Declared)), (All, 0));
        assert_eq!(global("other", None), (Declared, 0));
        assert_eq!(global("any", Some(All)).0, Declared);
        assert_eq!(narrowed.vain.len(), 2, "{:?}", narrowed.vain);
    }

    #[test]
    fn errors_of_a_server_stay_masked_by_whatever_key() {
        let operator = "{ s: { command: x, limits: { mask_errors: true } } }";
        for merged in [
            ["{ overrides: { s: { mask_errors: false } } }", "{}"],
            ["{}", "{ s: { limits: { mask_errors: false } } }"],
        ] {
            let narrowed = narrowed(["{}", operator], merged);
            let name: NamespaceName = "s".parse().expect("a name");
            let own = &narrowed.servers.stdio[&name].limits;
            let (limits, ..) = effective_limits(own, None, &name, &narrowed.namespaces);
            assert!(limits.mask_errors, "{merged:?}");
            assert_eq!(narrowed.vain.len(), 1, "{merged:?}: {:?}", narrowed.vain);
        }
    }

    #[test]
    fn a_namespaces_own_file_is_asked_under_both_configurations() {
        let operator = "{ overrides: { a: { principals: [admin] } } }";
        let merged = "{ overrides: { a: { principals: ['*'] } } }";
        let narrowed = narrowed([operator, "{}"], [merged, "{}"]);
        let own: LimitsPatch = yaml::from_str("{ principals: [x] }").expect("yaml");
        let policy = |name: &str| {
            let name: NamespaceName = name.parse().expect("a name");
            let file = Some("tooldock.yaml");
            let (limits, ..) = effective_limits(&own, file, &name, &narrowed.namespaces);
            ToolPolicy::new(&limits).expect("patterns")
        };
        assert!(policy("a").allows_principal("admin") && !policy("a").allows_principal("x"));
        assert!(policy("b").allows_principal("x") && !policy("b").allows_principal("admin"));
    }

    #[test]
    fn a_server_of_the_operator_can_be_switched_off_and_cut_down_and_nothing_else() {
        let operator = "{ s: { command: mine, env: { A: x }, limits: { timeout: 20s } } }";
        for (over, vain) in [
            ("{ s: { command: theirs } }", 1),
            ("{ s: { env: { A: y } } }", 1),
            ("{ s: { args: [x], personal: [A] } }", 1),
            ("{ s: { enabled: false, limits: { timeout: 1s } } }", 0),
        ] {
            let narrowed = narrowed(["{}", operator], ["{}", over]);
            let name: NamespaceName = "s".parse().expect("a name");
            let server = &narrowed.servers.stdio[&name];
            assert_eq!(server.command, "mine", "{over}");
            assert_eq!(server.args, Vec::<String>::new(), "{over}");
            assert_eq!(server.source, Source::Operator);
            assert_eq!(narrowed.vain.len(), vain, "{:?}", narrowed.vain);
            assert_eq!(narrowed.servers.refused.len(), vain);
            assert_eq!(server.enabled, vain == 1);
        }
        let added = narrowed(["{}", "{}"], ["{}", "{ n: { command: x } }"]);
        let servers = added.servers.stdio.values();
        assert!(servers.map(|it| it.source).eq([Source::DataFile]));
    }

    #[test]
    fn no_number_of_an_operators_server_goes_up_by_whatever_key() {
        let operator = [
            "{ defaults: { queue: 5 }, overrides: { s: { max_parked: 3 } } }",
            "{ s: { command: x, limits: { timeout: 2s, tools: { t: { timeout: 1s } } } } }",
        ];
        let more = "{ timeout: 60s, queue: 50, max_parked: 30, max_concurrency: 20, tools: { t: { timeout: 9s } } }";
        let over = format!("{{ overrides: {{ s: {more} }}, defaults: {{ queue: 50 }} }}");
        let servers = format!("{{ s: {{ limits: {more} }} }}");
        for data_file in [[&*over, "{}"], ["{}", &*servers], [&*over, &*servers]] {
            let narrowed = narrowed(operator, data_file);
            let name: NamespaceName = "s".parse().expect("a name");
            let own = &narrowed.servers.stdio[&name].limits;
            let (limits, tools, _) = effective_limits(own, None, &name, &narrowed.namespaces);
            assert_eq!(limits.timeout.as_secs(), 2, "{data_file:?}");
            assert_eq!((limits.queue, limits.max_parked), (5, 3), "{data_file:?}");
            assert_eq!(limits.max_concurrency, Limits::default().max_concurrency);
            assert_eq!(tools["t"].timeout.unwrap().as_secs(), 1, "{data_file:?}");
        }
    }

    #[test]
    fn the_data_file_makes_pins_stricter_and_never_looser() {
        let narrowed = narrowed(
            [
                "{ defaults: { pins: enforce }, overrides: { loose: { pins: off } } }",
                "{ s: { command: x, pins: enforce }, t: { command: x, pins: off } }",
            ],
            [
                "{ defaults: { pins: off }, overrides: { s: { pins: off }, loose: { pins: off }, t: { pins: warn } } }",
                "{ s: { pins: off }, new: { command: y, pins: off } }",
            ],
        );
        let NarrowedConfig {
            namespaces,
            servers,
            vain,
        } = narrowed;
        assert_eq!(namespaces.defaults.pins, PinMode::Enforce);
        for (name, mode) in [
            ("s", PinMode::Enforce),
            ("t", PinMode::Warn),
            ("loose", PinMode::Off),
            ("new", PinMode::Enforce),
            ("other", PinMode::Enforce),
        ] {
            let name: NamespaceName = name.parse().expect("a name");
            let own = servers.stdio.get(&name).map(|it| it.own_limits());
            let file = (name.as_str() == "new").then_some("config.yaml");
            let own = own.unwrap_or_default();
            let (limits, ..) = effective_limits(&own, file, &name, &namespaces);
            assert_eq!(limits.pins, mode, "{name}");
        }
        let said = vain.join("\n");
        for key in [
            "namespaces.defaults.pins",
            "namespaces.overrides.s.pins",
            "upstreams.stdio.new.limits.pins",
        ] {
            assert!(said.contains(key), "{key}: {said}");
        }
    }

    #[test]
    fn the_data_file_makes_a_sandbox_stricter_and_never_wider() {
        let narrowed = narrowed(
            [
                "{ defaults: { sandbox: basic }, ceilings: { sandbox: basic }, overrides: { open: { sandbox: off } } }",
                "{ s: { command: x, sandbox: strict } }",
            ],
            [
                "{ defaults: { sandbox: off }, ceilings: { sandbox: off }, overrides: { shut: { sandbox: strict }, \
                 wide: { sandbox: off }, open: { sandbox: off } } }",
                "{ s: { sandbox: off }, new: { command: y, sandbox: off } }",
            ],
        );
        let namespaces = &narrowed.namespaces;
        assert_eq!(namespaces.defaults.sandbox.mode, SandboxMode::Basic);
        assert_eq!(namespaces.ceilings.sandbox.mode, SandboxMode::Basic);
        for (name, mode) in [
            ("open", SandboxMode::Off),
            ("shut", SandboxMode::Strict),
            ("wide", SandboxMode::Basic),
            ("another", SandboxMode::Basic),
        ] {
            let name = name.parse().unwrap();
            let (limits, ..) = effective_limits(&LimitsPatch::default(), None, &name, namespaces);
            assert_eq!(limits.sandbox.mode, mode, "{name}");
        }
        for (name, mode) in [("s", SandboxMode::Strict), ("new", SandboxMode::Basic)] {
            let name: NamespaceName = name.parse().unwrap();
            let own = narrowed.servers.stdio[&name].own_limits();
            let (limits, ..) = effective_limits(&own, None, &name, namespaces);
            assert_eq!(limits.sandbox.mode, mode, "{name}");
        }
        for key in [
            "namespaces.defaults.sandbox",
            "namespaces.ceilings.sandbox",
            "namespaces.overrides.wide.sandbox",
            "upstreams.stdio.s",
            "upstreams.stdio.new.limits.sandbox",
        ] {
            let mut vain = narrowed.vain.iter();
            assert!(
                vain.any(|it| it.starts_with(key)),
                "{key}: {:?}",
                narrowed.vain
            );
        }
    }
}
