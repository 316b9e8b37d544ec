//! Calls whose principal lacks a personal credential that the server needs. The client gets a link to a page of the gateway, and
//! the call continues once the credential is stored, on that page or otherwise (such as with `tooldock secrets`).
//!
//! A client that cannot be asked to open a link gets the link in the text of the error `missing_credential`.

use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_protocol::bridge::links::{self, ElicitationLink};
use tooldock_workers::registry::Namespace;

use super::ExternalServers;
use super::call::ServerCall;
use super::links::LinkDeclined;
use crate::connect_links::{ConnectLink, LinkSubject, with_link};
use crate::engine::Peer;
use crate::upstream::CallContext;

impl ServerCall {
    /// Checks that the caller has all personal credentials that the server needs. If one is missing, asks the client to open a
    /// link, and waits until the credential is stored.
    ///
    /// # Errors
    ///
    /// `missing_credential` if no link can be offered, the user declines, or the credential is not stored in time; `ask_failed`
    /// if the client gives no answer.
    pub(super) async fn connect(&self, peer: &Peer) -> Result<(), CallError> {
        let external = &*self.external;
        let (namespace, principal) = (&*self.facts.namespace, self.requester.principal.as_deref());
        let Err(missing) = external.check_credentials(namespace, principal) else {
            return Ok(());
        };
        let Some(link) = self.link(&missing) else {
            return Err(missing);
        };
        let page = ElicitationLink {
            url: link.url.clone(),
            message: format!(
                "The tools of {} act in your name, and the gateway needs your consent or credential for that.",
                namespace.name
            ),
            id: link.id.clone(),
        };
        match self.ask_to_open(peer, std::slice::from_ref(&page)).await {
            Ok(Ok(())) => {}
            Ok(Err(LinkDeclined)) => {
                let why = "The user declined to open the page of the gateway";
                return Err(with_reason(missing, why));
            }
            Err(error) if error.code == CallErrorCode::MissingCapability => {
                return Err(with_link(missing, &link));
            }
            Err(error) => return Err(error),
        }
        let stored = external.credentials_stored(namespace, principal);
        if let Err(late) = self.while_outside(peer, stored).await {
            return Err(with_reason(missing, &late.message));
        }
        if !self.client.is_modern() {
            peer.say(None, links::completed(&page.id));
        }
        Ok(())
    }

    /// Returns a link on whose page the caller can give the missing credential; `None` if the gateway offers none for this error.
    fn link(&self, missing: &CallError) -> Option<ConnectLink> {
        if missing.code != CallErrorCode::MissingCredential {
            return None;
        }
        self.external.links.as_ref()?.offer(&LinkSubject {
            namespace: &self.facts.namespace,
            profile: &self.profile,
            principal: self.requester.principal.as_deref()?,
            session: self.client.session(),
        })
    }
}

impl ExternalServers {
    /// Returns true if an error means that the caller lacks a credential, and the caller can give the credential on a page of the
    /// gateway; false for other errors, and if there is no such page.
    pub(super) fn can_connect(&self, cx: &CallContext<'_>, error: &CallError) -> bool {
        let Some(principal) = cx.caller.principal.as_deref() else {
            return false;
        };
        error.code == CallErrorCode::MissingCredential
            && self.links.as_ref().is_some_and(|links| {
                links.offers(&LinkSubject {
                    namespace: &cx.namespace,
                    profile: &cx.caller.profile,
                    principal,
                    session: cx.session(),
                })
            })
    }

    /// Waits until a principal has all personal credentials that the server needs. Cancel safe.
    async fn credentials_stored(&self, namespace: &Namespace, principal: Option<&str>) {
        let mut changes = self.registry.personal().subscribe();
        loop {
            let checked = self.check_credentials(namespace, principal);
            // `changed` fails only after the registry is dropped, which does not happen while this process serves calls.
            if checked.is_ok() || changes.changed().await.is_err() {
                return;
            }
        }
    }
}

fn with_reason(mut missing: CallError, reason: &str) -> CallError {
    missing.message = format!("{reason}: {}", missing.message);
    missing
}
