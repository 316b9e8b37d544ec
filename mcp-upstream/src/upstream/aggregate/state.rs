//! States of a member of an aggregate, and the reasons for a missing offer.

use std::fmt;
use std::sync::Arc;

use super::offer::Offer;
use crate::upstream::health::MemberOffer;

/// The reason for an ended server.
pub(super) const ENDED: &str = "its server ended";

/// State of a member.
#[derive(Clone)]
pub(super) enum MemberReadiness {
    /// Its lists are being read for the first time.
    Starting,
    /// The first reading takes longer than its time limit.
    Late,
    /// It has this offer.
    Ready(Arc<Offer>),
    /// It has no offer.
    Gone {
        why: Arc<Why>,
        /// Its last offer. The names stay reserved: a later server of the file must not replace a tool that a client has turned
        /// on.
        last: Option<Arc<Offer>>,
    },
}

/// A member's contribution to the catalogue.
#[derive(Clone)]
pub(super) struct CatalogueOffer {
    /// The prefix of its names.
    pub(super) prefix: Arc<str>,
    /// The current offer, or the last one if there is none now.
    pub(super) offer: Option<Arc<Offer>>,
    /// True if the offer is current.
    pub(super) now: bool,
}

/// Reason why a member has no offer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// No namespace of that name is served.
    Missing,
    /// Its server ended.
    Ended,
    /// The offer differs from its `pin`. The full text, for the log.
    Pin(String),
    /// The offer could not be read: the words of its server, or of the failure here. Only for the log, since they may hold paths,
    /// commands and other words of a server.
    Unread(String),
}

impl Why {
    /// The reason for clients.
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
    /// The full reason, for the log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pin(reason) | Self::Unread(reason) => reason,
            Self::Missing | Self::Ended => self.told(),
        })
    }
}

impl MemberReadiness {
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

    /// The last offer.
    pub(super) fn last(&self) -> Option<Arc<Offer>> {
        match self {
            Self::Ready(offer) => Some(Arc::clone(offer)),
            Self::Gone { last, .. } => last.clone(),
            Self::Starting | Self::Late => None,
        }
    }
}
