//! Warning about environment variables that belong to this program but have no effect in the gateway: certain known names, and
//! unknown names with the program's prefix. Without the warning, an operator could think that the setting is in force.

use super::ports;
use super::{Environment, Settings, VARIABLES};

/// Variables of `oubliette-client`, the relay's client in containers. In the gateway they have no effect.
const OF_RELAY_CLIENTS: &[&str] = &["OUBLIETTE_API_KEY", "OUBLIETTE_CALLER_WAIT_MS"];

const PREFIX: &str = "TOOLDOCK_";

/// Variables that only commands use. They are not reported, since they may be set in the shell that starts a gateway.
const OF_COMMANDS: &[&str] = &["TOOLDOCK_TOKEN"];

/// Suffixes of variables that Kubernetes and Docker set for a service called `tooldock`. They are not reported, since no operator
/// set them.
const OF_SERVICE_DISCOVERY: [&str; 4] = ["_SERVICE_HOST", "_SERVICE_PORT", "_TCP", "_UDP"];

/// Returns true if the name of a variable shows that it belongs to this program, and the table of variables does not contain it.
pub(super) fn is_variable(name: &str) -> bool {
    let is_ours = name.strip_prefix(PREFIX).is_some_and(|rest| {
        let rest = format!("_{rest}");
        rest != "_PORT" && !OF_SERVICE_DISCOVERY.iter().any(|part| rest.contains(part))
    });
    let has_effect = VARIABLES.iter().any(|variable| variable.name == name);
    (is_ours && !has_effect && !OF_COMMANDS.contains(&name)) || OF_RELAY_CLIENTS.contains(&name)
}

/// Returns the warning about variables without effect; `None` if no such variable is set.
pub(super) fn warning(environment: &Environment, settings: &Settings) -> Option<String> {
    let listeners = &settings.config.listeners;
    let is_port = |name: &str| {
        let mut listeners = listeners.iter();
        listeners.any(|it| ports::variable_of(&it.name) == name)
    };
    let names: Vec<_> = environment
        .0
        .keys()
        .map(String::as_str)
        .filter(|name| is_variable(name) && !is_port(name))
        .collect();
    match names[..] {
        [] => None,
        [name] => Some(format!("{name} is set, and has no effect in the gateway")),
        _ => Some(format!(
            "{} are set, and have no effect in the gateway",
            names.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Role};

    fn warned(variables: &[&str]) -> Vec<String> {
        let variables = variables.iter().map(|name| ((*name).into(), "1".into()));
        let mut settings = Settings::new(Config::default(), Role::All);
        Environment::from_vars(variables)
            .apply(&mut settings)
            .expect("valid");
        settings.warnings
    }

    #[test]
    fn a_variable_of_ours_that_changes_nothing_is_named() {
        for name in [
            "OUBLIETTE_CALLER_WAIT_MS",
            "TOOLDOCK_UID",
            "TOOLDOCK_MERTICS_PORT",
        ] {
            let warning = format!("{name} is set, and has no effect in the gateway");
            assert_eq!(warned(&[name]), [warning]);
        }
        assert_eq!(
            warned(&["OUBLIETTE_CALLER_WAIT_MS", "OUBLIETTE_API_KEY"]),
            [
                "OUBLIETTE_API_KEY, OUBLIETTE_CALLER_WAIT_MS are set, and have no effect in the gateway"
            ]
        );
    }

    #[test]
    fn variables_that_are_acted_on_and_those_of_others_are_not() {
        let none: [&str; 0] = [];
        for name in [
            "TOOLDOCK_METRICS_PORT",
            "REPLICA_ID_OF_OTHERS",
            "PATH",
            "TOOLDOCK_PORT",
            "TOOLDOCK_TOKEN",
            "TOOLDOCK_SERVICE_HOST",
            "TOOLDOCK_SERVICE_PORT",
            "TOOLDOCK_SERVICE_PORT_HTTP",
            "TOOLDOCK_CORE_SERVICE_PORT",
            "TOOLDOCK_PORT_8000_TCP_ADDR",
        ] {
            assert_eq!(warned(&[name]), none, "{name}");
        }
    }

    #[test]
    fn no_variable_is_both_acted_on_and_not() {
        for variable in super::super::VARIABLES {
            assert!(!is_variable(variable.name), "{}", variable.name);
        }
    }
}
