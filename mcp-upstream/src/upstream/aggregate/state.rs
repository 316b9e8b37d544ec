//! How a member of an aggregate is, and why it offers nothing where it does not.

use std::fmt;
use std::sync::Arc;

use super::offer::Offer;
use crate::upstream::health::MemberOffer;

/// Why a member offers nothing any more.
pub(super) const ENDED: &str = "its server ended";

/// How a member is.
#[derive(Clone)]
pub(super) enum State {
    /// Its lists are being read for the first time.
    Starting,
    /// That takes longer than its time limit.
    Late,
    /// It offers this.
    Ready(Arc<Offer>),
    /// It offers nothing.
    Gone {
        why: Arc<Why>,
        /// What it offered last. Its names stay its own: a later server of the file must not take the place of a tool that
        /// a client has turned on.
        last: Option<Arc<Offer>>,
    },
}

/// What one member has to do with the catalogue.
#[derive(Clone)]
pub(super) struct Offered {
    /// What stands before its names.
    pub(super) prefix: Arc<str>,
    /// What it offers, or where that is nothing now, what it offered last.
    pub(super) offer: Option<Arc<Offer>>,
    /// Whether it offers that now.
    pub(super) now: bool,
}

/// Why a member offers nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// No namespace of that name is served.
    Missing,
    /// Its server ended.
    Ended,
    /// What it offers is not what its `pin` says. In full, for the log.
    Pin(String),
    /// Nobody could learn what it offers: the words of its server, or of what failed here. For the log alone, since they may
    /// hold paths, commands and whatever a server likes to say.
    Unread(String),
}

impl Why {
    /// The reason as clients may see it.
    pub(super) fn told(&self) -> &'static str {
        match self {
            Self::Missing => "no namespace of that name is served",
            Self::Ended => ENDED,
            Self::Pin(_) => "what it offers is not what the configuration pins",
            Self::Unread(_) => {
                "it did not say what it offers, and whoever runs the gateway finds the reason in its log"
            }
        }
    }
}

impl fmt::Display for Why {
    /// In full, for the log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pin(reason) | Self::Unread(reason) => reason,
            Self::Missing | Self::Ended => self.told(),
        })
    }
}

impl State {
    pub(super) fn offer(&self) -> Option<Arc<Offer>> {
        match self {
            Self::Ready(offer) => Some(Arc::clone(offer)),
            Self::Starting | Self::Late | Self::Gone { .. } => None,
        }
    }

    /// The state of the namespace, for operators.
    pub(super) fn health(&self) -> MemberOffer {
        match self {
            Self::Starting => MemberOffer::Awaited,
            Self::Late => MemberOffer::Late,
            Self::Ready(_) => MemberOffer::There,
            Self::Gone { why, .. } => MemberOffer::Gone(why.told()),
        }
    }

    /// What it offered last.
    pub(super) fn last(&self) -> Option<Arc<Offer>> {
        match self {
            Self::Ready(offer) => Some(Arc::clone(offer)),
            Self::Gone { last, .. } => last.clone(),
            Self::Starting | Self::Late => None,
        }
    }
}
