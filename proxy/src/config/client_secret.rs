//! `client_secret` of an issuer: the secret itself, or the name of a variable that holds it.

use tooldock_filters::config::ClientSecret;

/// The password of the gateway at an introspection endpoint, read from the environment where it is a variable.
///
/// # Errors
///
/// The name of the variable, if it is not set.
pub(crate) fn introspection_password(secret: &ClientSecret) -> Result<String, String> {
    match secret.variable() {
        None => Ok(secret.written().expose().to_owned()),
        Some(name) => std::env::var(name)
            .ok()
            .filter(|value| !value.is_empty())
            .ok_or_else(|| format!("introspection.client_secret: the variable {name} is not set")),
    }
}
