//! The two tokens of a process: the bearer token for tools, and the manager token for reloads.
//!
//! Tokens come from environment variables, or from files that variables name; never from the configuration file. A missing token
//! is an error for `serve` and a warning for `check`. In two cases it is generated instead (DESIGN): the manager token of a
//! process that runs both halves of the gateway, and both tokens with `--dev`.

use std::path::Path;

use tooldock_base::secret::Secret;

use super::{ConfigError, LoadOptions, Purpose, Role, Settings};

const BEARER: &str = "BEARER_TOKEN";
const MANAGER: &str = "MANAGER_INTERNAL_TOKEN";

/// Random tokens that are used if none are configured. They have 32 bytes each and are generated once per process. With `--dev`,
/// both are replaced by the stored tokens of an earlier run.
#[derive(Debug, Clone)]
pub(crate) struct GeneratedTokens {
    pub(super) bearer: Secret,
    pub(super) manager: Secret,
}

impl GeneratedTokens {
    /// Length of a generated token, in hexadecimal digits.
    pub(crate) const LENGTH: usize = 64;

    /// Generates both tokens.
    ///
    /// # Errors
    ///
    /// If the operating system provides no random bytes.
    pub(crate) fn new() -> Result<Self, ConfigError> {
        let one = || Self::one().map_err(|error| ConfigError::Randomness(error.to_string()));
        Ok(Self {
            bearer: one()?,
            manager: one()?,
        })
    }

    /// Generates a random token.
    ///
    /// # Errors
    ///
    /// If the operating system provides no random bytes.
    pub(crate) fn one() -> Result<Secret, getrandom::Error> {
        let mut bytes = [0; Self::LENGTH / 2];
        getrandom::fill(&mut bytes)?;
        Ok(Secret::new(hex::encode(bytes)))
    }
}

/// Flags that show which tokens this process generated; `--dev` prints only those.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct GeneratedMarks {
    /// True if the bearer token was generated; false if it was configured.
    pub(crate) bearer: bool,
    /// True if the manager token was generated; false if it was configured.
    pub(crate) manager: bool,
}

/// The tokens in force.
pub(super) struct EffectiveTokens {
    pub(super) bearer: Option<Secret>,
    pub(super) manager: Secret,
    pub(super) generated: GeneratedMarks,
}

/// Chooses both tokens, and warns about missing tokens and example values.
pub(super) fn settle(
    settings: &Settings,
    options: &LoadOptions,
    data_dir: &Path,
    warnings: &mut Vec<String>,
) -> Result<EffectiveTokens, ConfigError> {
    let mut missing = |name: &'static str, reason: &str| match options.purpose {
        Purpose::Serve => Err(ConfigError::variable(name, reason)),
        Purpose::Check | Purpose::Command => {
            warnings.push(format!("{name}: {reason}"));
            Ok(())
        }
    };
    let mut generated = GeneratedMarks::default();
    let bearer = match &settings.bearer {
        Some(bearer) => Some(bearer.clone()),
        None if options.dev => {
            generated.bearer = true;
            Some(options.generated.bearer.clone())
        }
        None if options.role == Role::Manager => {
            missing(
                BEARER,
                "not set, nor is BEARER_TOKEN_FILE: with --role manager, the manager shows this token to the core",
            )?;
            None
        }
        None => {
            let admission = &settings.config.admission;
            let nobody = admission.tokens.is_empty() && admission.certificates.is_empty();
            let nobody = nobody && admission.oauth.is_empty();
            if nobody && !settings.config.keys.path(data_dir).exists() {
                missing(
                    BEARER,
                    "not set, nor is BEARER_TOKEN_FILE, admission.tokens, admission.certificates and admission.oauth are empty, and there are no API keys: nobody could call a tool",
                )?;
            }
            None
        }
    };
    let manager = match &settings.manager_token {
        Some(manager) => manager.clone(),
        None => {
            if options.role != Role::All && !options.dev {
                missing(
                    MANAGER,
                    "not set, nor is MANAGER_INTERNAL_TOKEN_FILE; with --role core or --role manager, both processes share this token",
                )?;
            }
            generated.manager = true;
            options.generated.manager.clone()
        }
    };
    for (name, token, placeholder) in [
        (BEARER, bearer.as_ref(), "change_me"),
        (MANAGER, Some(&manager), "change_me_internal"),
    ] {
        if token.is_some_and(|token| token.expose() == placeholder) {
            warnings.push(format!(
                "{name}: is the example's value; everybody knows it"
            ));
        }
    }
    Ok(EffectiveTokens {
        bearer,
        manager,
        generated,
    })
}
