//! Streams that are dropped and resumed repeatedly while events are published: each event must arrive once and in
//! order.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;

use super::scene::{NEWS, Scene};
use crate::streams::{Crowd, Deliveries, Publisher};

/// Number of concurrent streams. Each round opens new sessions; the old ones are abandoned and must expire.
const STREAMS: usize = 30;
const PAUSE: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(20);
const NAME: &str = "streams resumed";

pub(super) async fn drop_and_resume(scene: Arc<Scene>) {
    let mut publisher = match Publisher::open(scene.envelope(NEWS)).await {
        Ok(publisher) => publisher,
        Err(error) => return scene.books().wrong(NAME, format!("{error:#}")),
    };
    let mut left_open = false;
    while scene.goes_on_after(PAUSE).await {
        match round(&scene, &mut publisher, left_open).await {
            Ok(()) => (0..STREAMS).for_each(|_| scene.books().right(NAME)),
            Err(error) => scene.books().wrong(NAME, format!("{error:#}")),
        }
        left_open = !left_open;
    }
}

async fn round(scene: &Scene, publisher: &mut Publisher, left_open: bool) -> anyhow::Result<()> {
    let envelope = scene.envelope(NEWS);
    let mut crowd = Crowd::new(envelope)?;
    crowd.sign_up(STREAMS).await?;
    crowd.open_up_to(STREAMS, envelope.to).await?;
    let known = publisher.published().len();
    for _ in 0..2 {
        publisher.publish().await?;
    }
    if !left_open {
        crowd.leave().await;
        publisher.publish().await?;
    }
    crowd.return_at_once();
    publisher.publish().await?;
    crowd.all_back().await?;
    publisher.publish().await?;
    let published = &publisher.published()[known..];
    crowd.each_has(publisher.last(), LIMIT).await;
    let old = crowd.old_ones_ended(LIMIT).await;
    ensure!(!left_open || old == 0, "{old} old streams not ended");
    let deliveries = Deliveries::of(&crowd, published);
    let fault = deliveries.fault();
    ensure!(fault.is_none(), "{}", fault.unwrap_or_default());
    let (turned_away, first) = crowd.counts().turned_away.clone();
    ensure!(
        turned_away == 0,
        "turned away: {}",
        first.unwrap_or_default()
    );
    Ok(())
}
