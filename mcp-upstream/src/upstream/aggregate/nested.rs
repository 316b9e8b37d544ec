//! An aggregate as a member of another one: all entries of its members, active or not, and none of its own tools.

use tooldock_workers::registry::Namespace;

use super::Shared;
use super::catalogue::Kind;
use super::offer::{Listed, Offer};
use super::reading::Reading;

/// The aggregate's offer, once its members have had their time to start.
///
/// # Errors
///
/// When the aggregate is not served any more.
pub(super) async fn read(shared: &Shared, namespace: &Namespace) -> Result<Reading, String> {
    let live = shared.of(namespace);
    let live = live.ok_or("the aggregate is not served any more")?;
    live.settled().await;
    let catalogue = live.catalogue();
    let listed = |kind| {
        let entries = catalogue.of(kind);
        let listed = entries.filter_map(|entry| Listed::new(&entry.published, &entry.definition));
        listed.collect()
    };
    Ok(Reading {
        offer: Offer {
            tools: listed(Kind::Tool),
            resources: listed(Kind::Resource),
            templates: listed(Kind::Template),
            prompts: listed(Kind::Prompt),
        },
        failed: Vec::new(),
        left_out: Vec::new(),
    })
}
