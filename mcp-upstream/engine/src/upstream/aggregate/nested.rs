//! Reading of an aggregate that is a member of another one: it offers all entries of its members, active or not, without its
//! own tools.

use tooldock_workers::registry::Namespace;

use super::AggregatesState;
use super::catalogue::EntryKind;
use super::offer::{Offer, OfferEntry};
use super::reading::MemberReading;

/// Reads the aggregate's offer, once each of its members has an offer, has failed or has exceeded its time limit.
///
/// # Errors
///
/// When the aggregate is no longer served.
pub(super) async fn read(
    shared: &AggregatesState,
    namespace: &Namespace,
) -> Result<MemberReading, String> {
    let live = shared.of(namespace);
    let live = live.ok_or("the aggregate is not served any more")?;
    live.settled().await;
    let catalogue = live.catalogue();
    let listed = |kind| {
        let entries = catalogue.of(kind);
        let listed =
            entries.filter_map(|entry| OfferEntry::new(&entry.published, &entry.definition));
        listed.collect()
    };
    Ok(MemberReading {
        offer: Offer {
            tools: listed(EntryKind::Tool),
            resources: listed(EntryKind::Resource),
            templates: listed(EntryKind::Template),
            prompts: listed(EntryKind::Prompt),
        },
        failed: Vec::new(),
        left_out: Vec::new(),
    })
}
