//! States of a member of an aggregate, and the reasons for a missing offer.

use std::fmt;
use std::sync::Arc;

use super::offer::Offer;
use crate::upstream::health::MemberOffer;

/// Text for clients that gives the reason [`NoOfferReason::Ended`].
pub(super) const ENDED: &str = "its server ended";

/// State of a member's offer.
#[derive(Clone)]
pub(super) enum MemberReadiness {
    /// The member's lists are being read for the first time.
    Starting,
    /// The first reading of the member's lists has exceeded its time limit, and continues.
    Late,
    /// The member's lists were read and form this offer.
    Ready(Arc<Offer>),
    /// The member has no current offer.
    Gone {
        why: Arc<NoOfferReason>,
        /// The member's last offer. Its names stay reserved: a later member in the file must not replace a tool that a client
        /// has activated.
        last: Option<Arc<Offer>>,
    },
}

/// A member's contribution to the catalogue.
#[derive(Clone)]
pub(super) struct CatalogueOffer {
    /// The prefix of the member's names.
    pub(super) prefix: Arc<str>,
    /// The current offer; the last offer if the member has no current one.
    pub(super) offer: Option<Arc<Offer>>,
    /// True if the member serves the offer at present; false if the member is unavailable and this is its last offer.
    pub(super) now: bool,
}

/// Reason why a member has no offer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoOfferReason {
    /// No namespace with the member's name is served.
    Missing,
    /// The member's server ended.
    Ended,
    /// The digest of the member's offer differs from its `pin` in the configuration. Contains the message for the log, with the
    /// actual digest.
    Pin(String),
    /// The offer could not be read. Contains the message of the server, or of a failure in the gateway. For the log only, since
    /// the message may contain paths, commands and other output of a server.
    Unread(String),
}

impl NoOfferReason {
    /// The reason as text for clients.
    pub(super) fn description(&self) -> &'static str {
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

impl fmt::Display for NoOfferReason {
    /// The full reason, for the log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pin(reason) | Self::Unread(reason) => reason,
            Self::Missing | Self::Ended => self.description(),
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

    /// The state as shown to operators.
    pub(super) fn health(&self) -> MemberOffer {
        match self {
            Self::Starting => MemberOffer::Awaited,
            Self::Late => MemberOffer::Late,
            Self::Ready(_) => MemberOffer::There,
            Self::Gone { why, .. } => MemberOffer::Gone(why.description()),
        }
    }

    /// The current offer, or the last one of an unavailable member.
    pub(super) fn last(&self) -> Option<Arc<Offer>> {
        match self {
            Self::Ready(offer) => Some(Arc::clone(offer)),
            Self::Gone { last, .. } => last.clone(),
            Self::Starting | Self::Late => None,
        }
    }
}
