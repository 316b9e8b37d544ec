//! Rule for repeating a message at another backend, in client mode and in pass-through mode.
//!
//! `retry.max` is the maximum number of backends to which a message may be sent after the first one failed. Such a backend gets
//! the message only if no part of it can have reached the former backend, or if the message may safely run twice. After a
//! timeout, no other backend is tried, since the message's own time limit is then over as well.

use tooldock_workers::remote::RemoteRetry;

/// Returns true if a message is sent to another backend, after `tried` backends have not answered it. `unsent`: no part of the
/// message reached the last backend.
pub fn may_resend(
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
            let found = may_resend(RemoteRetry { max }, tried, unsent, || harmless);
            assert_eq!(found, expected, "{max} {tried} {unsent} {harmless}");
        }
    }
}
