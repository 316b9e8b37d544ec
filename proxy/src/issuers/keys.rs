//! Fetches the keys of an issuer: from the URL in its metadata, from a configured URL, or from a file.

use std::path::Path;

use http::StatusCode;
use tooldock_base::regular_file;
use tooldock_filters::config::{JwksSource, OauthConfig};
use tooldock_filters::oauth::KeySet;

use super::metadata::{self, DOCUMENT_MAX, get};
use crate::remote::Fetcher;

/// Fetched keys of an issuer, and the URL from which they came; the URL is empty for a file.
pub(super) struct FetchedKeys {
    pub(super) keys: KeySet,
    pub(super) endpoint: String,
}

/// Fetches the keys of an issuer. `endpoint` is their URL if it is known from the issuer's metadata.
///
/// # Errors
///
/// The cause, for the log.
pub(super) async fn fetch(
    fetcher: &Fetcher,
    config: &OauthConfig,
    endpoint: Option<String>,
) -> Result<FetchedKeys, String> {
    let endpoint = match (&config.jwks, endpoint) {
        (JwksSource::File(file), _) => {
            let keys = KeySet::parse(&read(file).await?);
            return Ok(FetchedKeys {
                keys: keys.map_err(|error| format!("{}: {error}", file.display()))?,
                endpoint: String::new(),
            });
        }
        (JwksSource::Url(url), _) => url.clone(),
        (JwksSource::Auto, Some(endpoint)) => endpoint,
        (JwksSource::Auto, None) => {
            let metadata = metadata::discover(fetcher, config).await?;
            metadata.keys(config)?
        }
    };
    let from = config.endpoint(&endpoint)?;
    let (status, body) = get(fetcher, config, &from).await?;
    if status != StatusCode::OK {
        return Err(format!(
            "{}: answered {status} to the request for its keys",
            from.id()
        ));
    }
    let keys = KeySet::parse(&body).map_err(|error| format!("{}: {error}", from.id()))?;
    Ok(FetchedKeys { keys, endpoint })
}

async fn read(file: &Path) -> Result<Vec<u8>, String> {
    let wrong = |what: &str| format!("{}: {what}", file.display());
    let path = file.to_owned();
    let read = move || regular_file::read_following(&path, DOCUMENT_MAX as u64);
    let bytes = tokio::task::spawn_blocking(read).await;
    let bytes = bytes.map_err(|_| wrong("reading it was interrupted"))?;
    bytes.map_err(|error| wrong(&error.to_string()))
}
