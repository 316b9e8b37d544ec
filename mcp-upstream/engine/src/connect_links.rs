//! Interface to the pages on which a principal gives the gateway its personal credential for an MCP server. The edge (the crate
//! `proxy`) implements the interface: it serves the pages and stores the credentials.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::to_raw_value;
use tooldock_base::error::CallError;
use tooldock_sessions::profile::Profile;
use tooldock_sessions::session::Session;
use tooldock_workers::registry::Namespace;

/// The call for which a link is offered.
#[derive(Clone, Copy)]
pub struct LinkSubject<'a> {
    /// The namespace of the server that needs the credential.
    pub namespace: &'a Namespace,
    /// The settings of the caller's listener.
    pub profile: &'a Profile,
    /// The principal whose credential is missing.
    pub principal: &'a str,
    /// The caller's session; `None` if the call has no session.
    pub session: Option<&'a Arc<Session>>,
}

/// A link to a page of the gateway. The URL is not a credential: a visitor of the page must sign in as the principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectLink {
    /// The URL of the page.
    pub url: String,
    /// Id of the elicitation by which a client is asked to open the page.
    pub id: String,
    /// Remaining time for which the page can be used.
    pub lifetime: Duration,
}

/// Source of links to pages on which a principal gives the gateway its personal credential for a server.
pub trait ConnectLinks: Send + Sync {
    /// Returns true if [`Self::offer`] can return a link; false if the credential cannot be given on a page.
    fn offers(&self, subject: &LinkSubject<'_>) -> bool;

    /// Returns the open link for the same principal, namespace and session, or else a new link; `None` if the credential cannot
    /// be given on a page, or if too many links are open.
    fn offer(&self, subject: &LinkSubject<'_>) -> Option<ConnectLink>;
}

/// Adds a link to the error for a missing credential: to its message, and to its details if they are a JSON object.
pub fn with_link(mut missing: CallError, link: &ConnectLink) -> CallError {
    missing.message = format!(
        "{}. Or open this link in a browser within {}, sign in as yourself, and call again: {}",
        missing.message,
        minutes(link.lifetime),
        link.url
    );
    let details = missing.details.as_ref();
    let details = details.and_then(|it| serde_json::from_str::<Value>(it.get()).ok());
    if let Some(Value::Object(mut details)) = details {
        details.insert("url".into(), link.url.as_str().into());
        details.insert("expires_in".into(), link.lifetime.as_secs().into());
        missing.details = to_raw_value(&details).ok();
    }
    missing
}

fn minutes(time: Duration) -> String {
    format!("{} minutes", time.as_secs().div_ceil(60))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tooldock_base::error::CallErrorCode;

    use super::*;

    #[test]
    fn the_error_keeps_the_command_and_gains_the_link() {
        let mut missing = CallError::new(CallErrorCode::MissingCredential, "none is set. Run: x");
        missing.details = to_raw_value(&json!({ "command": "x" })).ok();
        let link = ConnectLink {
            url: "https://gw.example/connect/abc".into(),
            id: "1".into(),
            lifetime: Duration::from_secs(600),
        };
        let error = with_link(missing, &link);
        let expected = "none is set. Run: x. Or open this link in a browser within 10 minutes, sign in as yourself, and call \
                        again: https://gw.example/connect/abc";
        assert_eq!(error.message, expected);
        let details: Value =
            serde_json::from_str(error.details.expect("details").get()).expect("JSON");
        assert_eq!(
            details,
            json!({ "command": "x", "url": link.url, "expires_in": 600 })
        );
    }
}
