//! `/api/configuration`: the configuration's keys in force with their sources, and the keys that a reload would change.
//! Credentials are masked.

use std::sync::Arc;

use serde_json::json;

use super::answer::{Answer, WebFailure, capitalised};
use super::request::ApiRequest;
use crate::mcp::{ConfigurationView, Core};

/// Source that is reported for values that no configuration source sets.
const DEFAULT: &str = "default";

/// Reads the configuration on a thread for blocking work.
async fn reading<T: Send + 'static>(
    core: &Core,
    read: impl FnOnce(&dyn ConfigurationView) -> T + Send + 'static,
) -> Result<T, WebFailure> {
    let facts = core.web.as_deref();
    let facts = facts.ok_or_else(WebFailure::without_management)?;
    let configuration = Arc::clone(&facts.configuration);
    let done = tokio::task::spawn_blocking(move || read(&*configuration)).await;
    done.map_err(|_| {
        WebFailure::refused("The look at the configuration was interrupted; try again")
    })
}

/// Responds with the keys in force. With `set=true` in the query, keys that have only their default value are omitted.
pub(super) async fn in_force(core: &Arc<Core>, request: &ApiRequest) -> Answer {
    let wanted = request.wanted();
    let set_alone = match request.parameter("set") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(WebFailure::invalid("set", "set must be true or false")),
    };
    let read = reading(core, |it| (it.in_force(), it.problem())).await?;
    let (values, problem) = read;
    let mut values = values.map_err(|error| WebFailure::refused(capitalised(error)))?;
    values.retain(|it| {
        let is_named =
            it.key.to_lowercase().contains(&wanted) || it.source.to_lowercase().contains(&wanted);
        is_named && !(set_alone && it.source == DEFAULT)
    });
    request.page_of(
        "values",
        values,
        |it| json!(it),
        json!({ "problem": problem }),
    )
}

/// Responds with the keys that a reload would change, or with the reason why the reload would be refused.
pub(super) async fn changes(core: &Arc<Core>, request: &ApiRequest) -> Answer {
    let (changes, refused) = match reading(core, |it| it.after_reload()).await? {
        Ok(changes) => (changes, None),
        Err(reason) => (Vec::new(), Some(reason)),
    };
    request.page_of(
        "changes",
        changes,
        |it| json!(it),
        json!({ "refused": refused }),
    )
}
