//! Handling of entries in `$DATA/config.yaml` that cannot be used together with the operator's file.

use tooldock_base::config::NamespacesConfig;
use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::Source;

use crate::remote::Mode;
use crate::servers::ServersConfig;

/// Removes unusable entries from a restricted configuration, so that the other restrictions of the data file stay in force. An
/// invalid server of the data file is omitted. A server of the operator is disabled if the data file restricts it in a way that
/// cannot be applied. Returns a sentence for each of these servers; it begins with the configuration key.
pub fn fit(
    namespaces: &NamespacesConfig,
    servers: &mut ServersConfig,
    operators_namespaces: &NamespacesConfig,
    operators_servers: &ServersConfig,
) -> Vec<String> {
    let mut unfit = Vec::new();
    servers.stdio.retain(|name, server| {
        let Err(error) = server.validate() else {
            return true;
        };
        let at = format!("upstreams.stdio.{name}.{}", error.key);
        match operators_servers.stdio.get(name) {
            None if server.source == Source::DataFile => {
                unfit.push(format!("{at}: {}; the server is left out", error.message));
                return false;
            }
            Some(own) if own.validate().is_ok() => {
                unfit.push(format!(
                    "{at}: {}; the server is switched off",
                    error.message
                ));
                server.enabled = false;
            }
            // The mistake is in the operator's own entry, and is reported when the operator's file is checked.
            _ => {}
        }
        true
    });
    for (name, server) in &mut servers.remote {
        let passes = server.enabled && server.mode == Mode::PassThrough;
        let own = operators_servers.remote.get(name).map(|it| &it.limits);
        let nothing = Default::default();
        let lists = |namespaces, limits| selects_tools(namespaces, name, limits);
        if passes
            && lists(namespaces, &server.limits)
            && !lists(operators_namespaces, own.unwrap_or(&nothing))
        {
            unfit.push(format!(
                "namespaces: tools_allow or tools_deny for {name}, which is a remote server in mode pass_through: the \
                 server is switched off"
            ));
            server.enabled = false;
        }
    }
    unfit
}

/// Returns true if the limits allow only some of a namespace's tools.
pub fn selects_tools(
    namespaces: &NamespacesConfig,
    name: &NamespaceName,
    own: &tooldock_base::config::LimitsPatch,
) -> bool {
    let mut limits = namespaces.defaults.clone();
    limits.apply(own);
    if let Some(over) = namespaces.overrides.get(name) {
        limits.apply(over);
    }
    limits.tools_allow != ["*"] || !limits.tools_deny.is_empty()
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    fn servers(text: &str) -> ServersConfig {
        ServersConfig {
            stdio: yaml::from_str(text).expect(text),
            ..ServersConfig::default()
        }
    }

    #[test]
    fn a_wrong_entry_leaves_out_its_own_server_and_switches_off_one_of_the_operator() {
        let operator = servers("{ mine: { command: x }, wrong: { } }");
        let mut merged = servers(
            "{ mine: { command: x, limits: { processes: 2 } }, wrong: { }, gone: { warm: 1 }, new: { command: y } }",
        );
        for name in ["gone", "new"] {
            let name: NamespaceName = name.parse().expect("a name");
            merged.stdio.get_mut(&name).expect("there").source = Source::DataFile;
        }
        let namespaces = NamespacesConfig::default();
        let unfit = fit(&namespaces, &mut merged, &namespaces, &operator);
        assert_eq!(unfit.len(), 2, "{unfit:?}");
        let states = merged.stdio.iter();
        let states: Vec<_> = states.map(|(it, s)| (it.as_str(), s.enabled)).collect();
        assert_eq!(states, [("mine", false), ("new", true), ("wrong", true)]);
    }

    #[test]
    fn a_server_that_passes_lists_through_is_switched_off_where_the_file_alone_selects_tools() {
        let remote = || ServersConfig {
            remote: yaml::from_str(
                "{ far: { backends: ['https://a.example/mcp'], mode: pass_through } }",
            )
            .expect("valid"),
            ..ServersConfig::default()
        };
        let selects: NamespacesConfig =
            yaml::from_str("{ overrides: { far: { tools_deny: [drop] } } }").expect("valid");
        let open = NamespacesConfig::default();
        let off = |merged, operator| {
            let mut servers = remote();
            let unfit = fit(merged, &mut servers, operator, &remote());
            assert_eq!(
                unfit.is_empty(),
                servers.remote.values().all(|it| it.enabled)
            );
            !unfit.is_empty()
        };
        assert!(off(&selects, &open));
        assert!(!off(&open, &open));
        assert!(!off(&selects, &selects), "the operator's own mistake");
    }
}
