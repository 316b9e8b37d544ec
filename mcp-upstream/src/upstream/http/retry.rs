//! When a message goes to another backend, in either mode.
//!
//! `retry.max` says how many further backends one message is given to. The first always gets it. A further one does where
//! nothing of the message can have reached the one before, or where running it twice is as good as once. A backend that
//! took too long is not followed by another: the time is up for the message, not for the backend.

use tooldock_workers::remote::RemoteRetry;

/// Whether a message that `tried` backends have not answered goes to one more. `unsent`: nothing of it reached the last.
pub(crate) fn goes_on(
    retry: RemoteRetry,
    tried: usize,
    unsent: bool,
    harmless: impl FnOnce() -> bool,
) -> bool {
    let further = usize::try_from(retry.max).unwrap_or(usize::MAX);
    tried <= further && (unsent || harmless())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_goes_to_so_many_further_backends_and_only_where_it_cannot_run_twice() {
        for (max, tried, unsent, harmless, expected) in [
            (0, 1, true, true, false),
            (1, 1, true, false, true),
            (1, 1, false, true, true),
            (1, 1, false, false, false),
            (1, 2, true, true, false),
            (3, 3, true, false, true),
            (3, 4, true, false, false),
        ] {
            let found = goes_on(RemoteRetry { max }, tried, unsent, || harmless);
            assert_eq!(found, expected, "{max} {tried} {unsent} {harmless}");
        }
    }
}
