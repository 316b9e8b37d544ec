//! Owners of calls: which client a call at a server is made for.
//!
//! A server's message that names no call may be about any call that the server still works on. It is for a client to hear
//! only where all of those have that client's owner.

use std::sync::Arc;

use tooldock_workers::answers::AnswerAccount;
use tooldock_workers::names::NamespaceName;

/// The principal and the namespace of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallOwner {
    /// `None`: a client that needs no credentials.
    pub(crate) principal: Option<Arc<str>>,
    /// The aggregate that the client called; `None` where it called the server's own namespace.
    pub(crate) aggregate: Option<NamespaceName>,
}

/// A client's call, as the link accounts for it.
#[derive(Debug, Clone)]
pub(crate) struct CallAccount {
    /// Counts the bytes of the answer.
    pub(crate) answers: AnswerAccount,
    pub(crate) owner: CallOwner,
}

/// The owners of all calls that a server has not answered yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallsInHand {
    /// No client's call.
    Empty,
    /// Calls of one owner.
    Of(CallOwner),
    /// Calls of several owners, or of one that is not known.
    Mixed,
}

/// Whose call waits for an answer.
#[derive(Debug, Clone)]
pub(super) enum CallOrigin {
    /// The gateway asks for itself: no client's words can come of it.
    Gateway,
    /// A request about a client, without its owner.
    Unknown,
    Client(CallAccount),
}

impl CallOrigin {
    /// The owner, where it is known.
    pub(super) fn owner(&self) -> Option<&CallOwner> {
        match self {
            Self::Client(account) => Some(&account.owner),
            Self::Gateway | Self::Unknown => None,
        }
    }

    /// The account that counts the answer.
    pub(super) fn answers(&self) -> Option<&AnswerAccount> {
        match self {
            Self::Client(account) => Some(&account.answers),
            Self::Gateway | Self::Unknown => None,
        }
    }
}

impl CallsInHand {
    /// Sums up the calls that wait.
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
