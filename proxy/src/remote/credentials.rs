//! Credentials that are added to a request to a backend and differ between requests: personal credentials and access tokens.

use http::{HeaderName, HeaderValue, header};
use smallvec::SmallVec;
use tooldock_upstream::http_client::{BackendRequest, SendError, SendErrorKind};

use super::failure::failed;
use super::headers;
use super::pool::PoolMember;

/// Headers with credentials for one request to a backend. Empty for most servers.
#[derive(Default)]
pub(super) struct Credentials {
    pub(super) headers: SmallVec<[(HeaderName, HeaderValue); 1]>,
    /// The value of the header `Authorization` if it is an OAuth access token; otherwise `None`.
    token: Option<HeaderValue>,
}

impl Credentials {
    /// Returns true if the request may be repeated with a new access token after the backend refused this one.
    pub(super) fn may_be_renewed(&self) -> bool {
        self.token.is_some()
    }
}

/// The credentials to add to a request. Must not be used for health checks: those belong to no principal, and must test the
/// backend, not its authorization server.
///
/// # Errors
///
/// When the principal lacks a credential, or no token could be obtained. Nothing was sent to the backend then.
pub(super) async fn of(
    member: &PoolMember,
    request: &BackendRequest,
) -> Result<Credentials, SendError> {
    with_token(member, request, None).await
}

/// The credentials to use after the backend refused an access token. `None` if no other token is available.
///
/// # Errors
///
/// When another token was requested but could not be obtained.
pub(super) async fn renewed(
    member: &PoolMember,
    request: &BackendRequest,
    refused: Credentials,
) -> Result<Option<Credentials>, SendError> {
    let own = with_token(member, request, refused.token.as_ref()).await?;
    Ok((own.token != refused.token).then_some(own))
}

async fn with_token(
    member: &PoolMember,
    request: &BackendRequest,
    refused: Option<&HeaderValue>,
) -> Result<Credentials, SendError> {
    let mut own = Credentials::default();
    personal(member, request, &mut own)?;
    if member.server.spec.oauth.is_some() {
        let tokens = &member.core.tokens;
        let principal = request.on_behalf_of.as_deref();
        let mut headers = request.headers.iter();
        let caller = headers.find(|(name, _)| *name == header::AUTHORIZATION);
        let caller = (principal, caller.map(|(_, value)| value));
        let token = tokens.authorization(&member.server, &member.spec.id, caller, refused);
        // The future is boxed, so that futures of requests without a token stay small.
        own.token = Box::pin(token).await?;
        let token = own.token.clone();
        own.headers
            .extend(token.map(|it| (header::AUTHORIZATION, it)));
    }
    Ok(own)
}

fn personal(
    member: &PoolMember,
    request: &BackendRequest,
    own: &mut Credentials,
) -> Result<(), SendError> {
    let server = &member.server;
    let personal = &server.spec.personal;
    let Some(principal) = request
        .on_behalf_of
        .as_deref()
        .filter(|_| personal.is_needed())
    else {
        return Ok(());
    };
    let refused = |what: &str| failed(&member.spec.id, SendErrorKind::Request, true, what);
    let values = personal.values(&server.name, &member.core.personal, Some(principal));
    let values = values.map_err(|error| refused(&error.message))?;
    for (name, value) in values.entries {
        let header = name.parse().ok().zip(headers::value(&value));
        own.headers.push(header.ok_or_else(|| {
            refused(
                "a personal credential has a control character, such as a line end, in its value",
            )
        })?);
    }
    Ok(())
}
