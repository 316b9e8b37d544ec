//! Keys with values that this version does not support yet. Such values are refused.
//!
//! When a feature is implemented, its line here is removed.

use super::listener::{AuthScheme, ListenerConfig, ProfileName};
use super::{Config, ConfigError};

/// A configuration key, and a function that returns true if this version supports the key's value.
type Rule<T> = (&'static str, fn(&T) -> bool);

const LISTENER_KEYS: &[Rule<ListenerConfig>] = &[("auth", |l| {
    l.auth.as_ref().is_none_or(|schemes| {
        l.profile == ProfileName::V1Web || !schemes.contains(&AuthScheme::Basic)
    })
})];

/// Returns an error for the first key whose value this version does not support.
pub(super) fn refuse(config: &Config) -> Result<(), ConfigError> {
    for (index, listener) in config.listeners.iter().enumerate() {
        refuse_in(listener, LISTENER_KEYS, || format!("listeners[{index}]."))?;
    }
    Ok(())
}

fn refuse_in<T>(
    value: &T,
    rules: &[Rule<T>],
    prefix: impl Fn() -> String,
) -> Result<(), ConfigError> {
    match rules.iter().find(|(_, supported)| !supported(value)) {
        Some((key, _)) => Err(ConfigError::not_supported(prefix() + key)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    fn refused(yaml: &str) -> Option<String> {
        let config: Config = yaml::from_str(yaml).expect(yaml);
        refuse(&config).err().map(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_supported() {
        assert_eq!(refuse(&Config::default()), Ok(()));
    }

    #[test]
    fn each_key_of_a_later_feature_is_refused_by_name() {
        let listener = |keys: &str| {
            format!("listeners: [{{ name: a, address: '127.0.0.1:1', profile: core, {keys} }}]")
        };
        let cases = [("listeners[0].auth", listener("auth: [bearer, basic]"))];
        for (key, yaml) in &cases {
            assert_eq!(
                refused(yaml),
                Some(format!("{key}: not supported by this version"))
            );
        }
        assert_eq!(cases.len(), LISTENER_KEYS.len());
    }
}
