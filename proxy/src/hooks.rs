//! Puts the configured hooks into force, at the start and when the configuration is read again.

use tooldock_credentials::secrets::Secrets;
use tooldock_upstream::Service;
use tooldock_upstream::hooks::HookConfig;

/// Puts the hooks into force. `secrets`: the secrets that were last read without an error.
pub(crate) fn put_into_force(service: &Service, hooks: &[HookConfig], secrets: &Secrets) {
    let environment = |name: &str| std::env::var(name).ok();
    if let Err((index, (key, reason))) = service.set_hooks(hooks, secrets, &environment) {
        tracing::error!("hooks[{index}].{key}: {reason}; the hooks before stay in force");
    }
}
