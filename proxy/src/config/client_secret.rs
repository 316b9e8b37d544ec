//! The key `client_secret` of an issuer: the secret itself, or the name of an environment variable that contains it.

use tooldock_filters::config::ClientSecret;

/// Returns the secret with which the gateway authenticates at an issuer. If the configuration names a variable, the secret is
/// read from the environment. `section` names the keys around `client_secret` for an error message, such as `introspection`.
///
/// # Errors
///
/// The name of the variable, if it is not set.
pub(crate) fn client_password(section: &str, secret: &ClientSecret) -> Result<String, String> {
    match secret.variable() {
        None => Ok(secret.written().expose().to_owned()),
        Some(name) => std::env::var(name)
            .ok()
            .filter(|value| !value.is_empty())
            .ok_or_else(|| format!("{section}.client_secret: the variable {name} is not set")),
    }
}
