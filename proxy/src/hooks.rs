//! Puts the configured hooks into force, at the start and when the configuration is read again.

use tooldock_credentials::secrets::Secrets;
use tooldock_upstream::Service;
use tooldock_upstream::hooks::HookConfig;

/// Puts the hooks into force, and returns the problems with them for `/ready`. `secrets`: the secrets that were last read
/// without an error.
pub(crate) fn put_into_force(
    service: &Service,
    hooks: &[HookConfig],
    secrets: &Secrets,
) -> Vec<(&'static str, String)> {
    let environment = |name: &str| std::env::var(name).ok();
    match service.set_hooks(hooks, secrets, &environment) {
        Ok(unusable) => unusable
            .into_iter()
            .map(|reason| {
                let problem = format!(
                    "{reason}; the hook fails until that is mended and the configuration read again"
                );
                tracing::warn!("{problem}");
                ("hooks", problem)
            })
            .collect(),
        Err((index, (key, reason))) => {
            let problem = format!("hooks[{index}].{key}: {reason}; the hooks before stay in force");
            tracing::error!("{problem}");
            vec![("hooks", problem)]
        }
    }
}
