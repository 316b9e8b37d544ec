//! Owners of calls: the clients on whose behalf calls are sent to a server.
//!
//! If a server's message names no call, it may be about any call that the server has not finished. So a client receives such a
//! message only if it owns all of these calls.

use std::sync::Arc;

use tooldock_base::answers::AnswerAccount;
use tooldock_base::names::NamespaceName;

/// The owner of a call: its principal, and the aggregate (a namespace made of other namespaces) through which the call came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallOwner {
    /// The client's principal; `None` for a client that needs no credentials.
    pub principal: Option<Arc<str>>,
    /// The aggregate that the client called; `None` if it called the server's namespace directly.
    pub aggregate: Option<NamespaceName>,
}

/// Accounting data of a client's call: the counter of its response's bytes, and its owner.
#[derive(Debug, Clone)]
pub struct CallAccount {
    /// The counter for the bytes of the call's response.
    pub answers: AnswerAccount,
    /// The client for which the call is made.
    pub owner: CallOwner,
    /// The gateway's id of the request, which is sent to a stdio server.
    pub request_id: Option<Arc<str>>,
}

/// The common owner of all calls that a server has not answered yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallsInHand {
    /// No call of a client is pending.
    Empty,
    /// All pending calls have this owner.
    Of(CallOwner),
    /// The pending calls have several owners, or an unknown owner.
    Mixed,
}

/// The origin of a pending call: the gateway or a client.
#[derive(Debug, Clone)]
pub(super) enum CallOrigin {
    /// A request of the gateway, which contains no data of a client.
    Gateway,
    /// A request for a client whose owner is unknown.
    Unknown,
    Client(CallAccount),
}

impl CallOrigin {
    /// Returns the owner of a client's call; `None` if it is not known, and for the gateway's requests.
    pub(super) fn owner(&self) -> Option<&CallOwner> {
        match self {
            Self::Client(account) => Some(&account.owner),
            Self::Gateway | Self::Unknown => None,
        }
    }

    /// Returns the account that counts the bytes of the call's response; `None` if it is not counted.
    pub(super) fn answers(&self) -> Option<&AnswerAccount> {
        match self {
            Self::Client(account) => Some(&account.answers),
            Self::Gateway | Self::Unknown => None,
        }
    }
}

impl CallsInHand {
    /// Determines the common owner of these pending calls.
    pub(super) fn of<'a>(calls: impl Iterator<Item = &'a CallOrigin>) -> Self {
        let mut only: Option<&CallOwner> = None;
        for origin in calls {
            match (origin, only) {
                (CallOrigin::Gateway, _) => {}
                (CallOrigin::Client(account), None) => only = Some(&account.owner),
                (CallOrigin::Client(account), Some(owner)) if account.owner == *owner => {}
                (CallOrigin::Client(_) | CallOrigin::Unknown, _) => return Self::Mixed,
            }
        }
        only.map_or(Self::Empty, |owner| Self::Of(owner.clone()))
    }
}
