//! Findings about hooks whose settings depend on secrets and variables, and their display without secrets.

use tooldock_base::mask;
use tooldock_base::yaml::Value;
use tooldock_credentials::secrets::Secrets;
use tooldock_upstream::hooks::HookConfig;
use tooldock_workers::servers::Finding;

use crate::config::Config;

/// Finds hooks whose service cannot be asked, since a value for `credentials` is missing.
pub(super) fn findings(config: &Config, secrets: &Secrets) -> Vec<Finding> {
    let environment = |name: &str| std::env::var(name).ok();
    let hooks = config.hooks.iter().enumerate();
    let unusable = hooks.filter_map(|(index, hook)| {
        let error = hook.server(index, secrets, &environment)?.err()?;
        Some(Finding {
            place: format!("hooks[{index}].{}", error.key),
            message: error.message,
            is_error: true,
        })
    });
    unusable.collect()
}

/// Masks URLs and credentials of hooks.
pub(super) fn mask(shown: &mut Value, hooks: &[HookConfig]) {
    for (index, hook) in hooks.iter().enumerate() {
        if let Some(url) = &hook.url {
            shown[index]["url"] = mask::url(url).into();
        }
        if let Some(credentials) = &hook.credentials {
            shown[index]["credentials"] = credentials.masked().into();
        }
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::secret::Secret;
    use tooldock_base::yaml;

    use super::*;

    #[test]
    fn a_hook_without_its_credential_is_found_by_its_key() {
        let text = "hooks: [{ on: call, tool: a.b }, { on: call, url: 'https://a', credentials: 'Bearer ${NO_SUCH_TOKEN}' }]";
        let config: Config = yaml::from_str(text).expect("valid");
        let found = findings(&config, &Secrets::default());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "hooks[1].credentials");
        assert!(
            found[0].message.contains("NO_SUCH_TOKEN"),
            "{}",
            found[0].message
        );
        let secrets = Secrets::global([("NO_SUCH_TOKEN", Secret::new("x"))]);
        assert!(findings(&config, &secrets).is_empty());
    }
}
