//! The variables `TOOLDOCK_<NAME>_PORT`: each sets the port of the listener with that name. They take precedence over `PORT` and
//! the other variables that set the port of a profile's first listener.

use super::parse::port;
use super::{ConfigError, Environment, Settings};

const PREFIX: &str = "TOOLDOCK_";
const SUFFIX: &str = "_PORT";

/// Returns the name of a listener's port variable: the listener's name in capitals, with `_` for characters that are neither
/// letters nor digits.
pub(in crate::config) fn variable_of(listener: &str) -> String {
    let spelled = listener.chars().map(|letter| match letter {
        letter if letter.is_ascii_alphanumeric() => letter.to_ascii_uppercase(),
        _ => '_',
    });
    format!("{PREFIX}{}{SUFFIX}", spelled.collect::<String>())
}

/// Returns true if `name` has the form of a listener's port variable.
pub(super) fn is_variable(name: &str) -> bool {
    let inner = name.strip_prefix(PREFIX);
    inner.is_some_and(|inner| inner.strip_suffix(SUFFIX).is_some_and(|it| !it.is_empty()))
}

/// Sets the ports of listeners whose port variables are set. Variables for names that no listener has are ignored.
pub(super) fn apply(environment: &Environment, settings: &mut Settings) -> Result<(), ConfigError> {
    for index in 0..settings.config.listeners.len() {
        let variable = variable_of(&settings.config.listeners[index].name);
        let Some(text) = environment.text(&variable)? else {
            continue;
        };
        let listeners = settings.config.listeners.iter();
        let sharing: Vec<_> = listeners
            .map(|listener| &*listener.name)
            .filter(|name| variable_of(name) == variable)
            .collect();
        if sharing.len() > 1 {
            let reason = format!("could mean any of the listeners {}", sharing.join(" and "));
            return Err(ConfigError::variable(variable, reason));
        }
        // Kubernetes sets variables with such names, and a URL as value, for services whose names begin with `tooldock-`.
        if text.contains("://") {
            settings.warnings.push(format!(
                "{variable}: holds the link of a service, not a port, and moves no listener"
            ));
            continue;
        }
        let port = port(text).map_err(|reason| ConfigError::variable(variable.clone(), reason))?;
        if !settings.config.listeners[index].address.set_port(port) {
            let reason = "the listener has a Unix socket, which has no port";
            return Err(ConfigError::variable(variable, reason));
        }
        let key = format!("listeners[{index}].address");
        settings.said_by.insert(key, variable);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listeners_name_is_spelled_as_variables_are() {
        for (listener, variable) in [
            ("metrics", "TOOLDOCK_METRICS_PORT"),
            ("my-tools.2", "TOOLDOCK_MY_TOOLS_2_PORT"),
        ] {
            assert_eq!(variable_of(listener), variable);
            assert!(is_variable(variable));
        }
        for other in ["TOOLDOCK_PORT", "TOOLDOCK_X", "PORT", "X_PORT"] {
            assert!(!is_variable(other), "{other}");
        }
    }
}
