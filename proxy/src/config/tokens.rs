//! The two tokens of a process: the bearer token for tools, and the manager token for reloads.
//!
//! Tokens come from the environment only, or from files that it names; never from the configuration. A missing token is an
//! error for `serve` and a warning for `check`. It is generated in the cases of DESIGN: the manager token of a single process,
//! and both tokens with `--dev`.

use std::path::Path;

use tooldock_base::secret::Secret;

use super::{ConfigError, LoadOptions, Purpose, Role, Settings};

const BEARER: &str = "BEARER_TOKEN";
const MANAGER: &str = "MANAGER_INTERNAL_TOKEN";

/// Tokens for processes without configured ones: 32 random bytes each, generated once per process. `--dev` replaces the bearer
/// token by its stored one.
#[derive(Debug, Clone)]
pub(crate) struct GeneratedTokens {
    pub(super) bearer: Secret,
    pub(super) manager: Secret,
}

impl GeneratedTokens {
    /// The number of hexadecimal digits of a token.
    pub(crate) const LENGTH: usize = 64;

    /// Generates both tokens.
    ///
    /// # Errors
    ///
    /// When the operating system provides no randomness.
    pub(crate) fn new() -> Result<Self, ConfigError> {
        let one = || Self::one().map_err(|error| ConfigError::Randomness(error.to_string()));
        Ok(Self {
            bearer: one()?,
            manager: one()?,
        })
    }

    /// Creates a token.
    ///
    /// # Errors
    ///
    /// When the operating system provides no randomness.
    pub(crate) fn one() -> Result<Secret, getrandom::Error> {
        let mut bytes = [0; Self::LENGTH / 2];
        getrandom::fill(&mut bytes)?;
        Ok(Secret::new(hex::encode(bytes)))
    }
}

/// Flags for the tokens that this process generated, so that `--dev` prints them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct GeneratedMarks {
    /// The bearer token.
    pub(crate) bearer: bool,
    /// The manager token.
    pub(crate) manager: bool,
}

/// The tokens in force.
pub(super) struct EffectiveTokens {
    pub(super) bearer: Option<Secret>,
    pub(super) manager: Secret,
    pub(super) generated: GeneratedMarks,
}

/// Determines both tokens and warns of placeholders.
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
