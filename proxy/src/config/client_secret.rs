//! `client_secret` of an issuer: the secret, or the name of an environment variable that contains the secret.

use tooldock_filters::config::ClientSecret;

/// The gateway's password as a client of an issuer, read from the environment where it is a variable. `section`: the keys
/// around `client_secret`, such as `introspection`.
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
