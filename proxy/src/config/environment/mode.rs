//! The variable `SERVER_MODE`: chooses the listeners of a process by a mode of ToolDock v1 (K-27).
//!
//! Each mode has certain profiles. If the configuration file has a listener with the profile, it is used unchanged. A missing
//! listener is created at the core listener's IP address, with the profile's usual port.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::super::listener::{ListenerConfig, ProfileName};
use super::super::{ListenAddress, Role};
use super::{ConfigError, Environment, Settings};

/// Name of the environment variable that chooses the mode.
const NAME: &str = "SERVER_MODE";

/// A mode: its name, the profiles of its listeners, and the half of the gateway that it runs.
type Mode = (&'static str, &'static [ProfileName], Role);

const MODES: &[Mode] = &[
    ("openapi", &[ProfileName::V1Rest], Role::All),
    ("mcp-http", &[ProfileName::V1Mcp], Role::All),
    (
        "both",
        &[ProfileName::V1Rest, ProfileName::V1Mcp],
        Role::All,
    ),
    ("web-gui", &[ProfileName::V1Web], Role::All),
    (
        "all",
        &[ProfileName::V1Rest, ProfileName::V1Mcp, ProfileName::V1Web],
        Role::All,
    ),
    (
        "core",
        &[ProfileName::Core, ProfileName::Metrics],
        Role::Core,
    ),
    (
        "manager",
        &[ProfileName::Manager, ProfileName::Metrics],
        Role::Manager,
    ),
    ("tool-vault", &[ProfileName::Vault], Role::All),
];

/// Returns the mode that `SERVER_MODE` names; `None` if the variable is not set.
fn of(environment: &Environment) -> Result<Option<&'static Mode>, ConfigError> {
    environment
        .text(NAME)?
        .map(|text| named(text).map_err(|reason| ConfigError::variable(NAME, reason)))
        .transpose()
}

fn named(text: &str) -> Result<&'static Mode, String> {
    let mode = MODES.iter().find(|(name, ..)| *name == text);
    mode.ok_or_else(|| {
        let names: Vec<_> = MODES.iter().map(|(name, ..)| *name).collect();
        format!("{text:?} is none of {}", names.join(", "))
    })
}

/// Returns the half of the gateway that a process runs, by `--role` (`said`) or by the mode. Returns an error if they contradict
/// each other.
pub(super) fn role(environment: &Environment, said: Role) -> Result<Role, ConfigError> {
    match (of(environment)?, said) {
        (None, said) => Ok(said),
        (Some((_, _, role)), Role::All) => Ok(*role),
        (Some((_, _, role)), said) if *role == said => Ok(said),
        (Some((name, ..)), _) => {
            let reason = format!("{name} contradicts --role; leave out one of the two");
            Err(ConfigError::variable(NAME, reason))
        }
    }
}

/// Replaces the listeners by those of the mode called `text`.
pub(super) fn apply(settings: &mut Settings, text: &str) -> Result<(), String> {
    let (_, profiles, _) = named(text)?;
    let before = std::mem::take(&mut settings.config.listeners);
    let core = before.iter().find(|it| it.profile == ProfileName::Core);
    let host = match core.map(|core| &core.address) {
        Some(ListenAddress::Tcp(address)) => address.ip(),
        _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    let made = |profile: ProfileName| {
        let address = SocketAddr::new(host, profile.usual_port()).into();
        ListenerConfig::new(profile.as_str(), address, profile)
    };
    for profile in *profiles {
        let mut known: Vec<_> = before
            .iter()
            .filter(|it| it.profile == *profile)
            .cloned()
            .collect();
        // A missing metrics listener is not created: metrics are only served if the file has a listener for them.
        if known.is_empty() && *profile != ProfileName::Metrics {
            known.push(made(*profile));
        }
        settings.config.listeners.extend(known);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn listeners(config: Config, mode: &str) -> Vec<String> {
        let mut settings = Settings::new(config, Role::All);
        apply(&mut settings, mode).expect("a mode");
        let listeners = settings.config.listeners.iter();
        listeners
            .map(|it| format!("{} {}", it.name, it.address))
            .collect()
    }

    #[test]
    fn a_mode_serves_its_profiles_alone() {
        for (mode, expected) in [
            ("openapi", &["v1-rest 127.0.0.1:18006"][..]),
            ("mcp-http", &["v1-mcp 127.0.0.1:18007"]),
            (
                "both",
                &["v1-rest 127.0.0.1:18006", "v1-mcp 127.0.0.1:18007"],
            ),
            ("web-gui", &["v1-web 127.0.0.1:18080"]),
            ("core", &["core 127.0.0.1:8000", "metrics 127.0.0.1:9090"]),
            (
                "manager",
                &["manager 127.0.0.1:8001", "metrics 127.0.0.1:9090"],
            ),
            ("tool-vault", &["vault 127.0.0.1:60124"]),
        ] {
            assert_eq!(listeners(Config::default(), mode), expected, "{mode}");
        }
        assert_eq!(listeners(Config::default(), "all").len(), 3);
    }

    #[test]
    fn a_listener_of_the_file_stays_and_a_new_one_listens_where_the_core_did() {
        let mut config = Config::default();
        config.listeners[0].address = "0.0.0.0:8000".parse().expect("an address");
        let own = "10.0.0.1:1".parse().expect("an address");
        config
            .listeners
            .push(ListenerConfig::new("own", own, ProfileName::V1Rest));
        assert_eq!(
            listeners(config, "both"),
            ["own 10.0.0.1:1", "v1-mcp 0.0.0.0:18007"]
        );
    }

    #[test]
    fn a_wrong_mode_and_one_against_the_command_line_are_refused() {
        let with = |mode: &str| Environment::from_vars([(NAME.into(), mode.into())]);
        let refused = |mode, role| {
            super::role(&with(mode), role)
                .expect_err("refused")
                .to_string()
        };
        let unknown = refused("openai", Role::All);
        assert!(
            unknown.starts_with("SERVER_MODE: \"openai\" is none of openapi,"),
            "{unknown}"
        );
        assert!(refused("core", Role::Manager).contains("--role"));
        assert!(refused("both", Role::Core).contains("--role"));
        assert_eq!(super::role(&with("manager"), Role::All), Ok(Role::Manager));
        assert_eq!(super::role(&with("all"), Role::All), Ok(Role::All));
    }
}
