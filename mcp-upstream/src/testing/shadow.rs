//! Services of a test over a store in memory, which lose their sessions before each request.

use std::cell::RefCell;
use std::sync::Arc;

use tooldock_sessions::testing::shadow::Shadow;

use super::Harness;

thread_local! {
    /// The store for the services that a test on this thread builds.
    static SHADOW: RefCell<Option<Arc<Shadow>>> = const { RefCell::new(None) };
}

/// Runs a test as if the process ended before each request in a session without running calls and readers: the session is
/// dropped, and the request adopts it from the store. Sessions over HTTP+SSE are only recorded.
pub(crate) fn adopting(test: fn()) {
    let shadow = Arc::new(Shadow::default());
    SHADOW.set(Some(Arc::clone(&shadow)));
    test();
    SHADOW.set(None);
    let used = shadow.claims() > 0 || shadow.patches() > 0;
    assert!(used, "no session was taken up, or changed");
}

/// Builds a harness with a store, and returns the store, too. Sessions are dropped only if the test does so.
pub(crate) fn recorded(build: impl FnOnce() -> Harness) -> (Harness, Arc<Shadow>) {
    let shadow = Arc::new(Shadow::default());
    SHADOW.set(Some(Arc::clone(&shadow)));
    let harness = build();
    SHADOW.set(None);
    harness.service.core().sessions.set_forgetful(false);
    (harness, shadow)
}

/// The store of the services of this test, if it has one.
pub(crate) fn of_this_test() -> Option<Arc<Shadow>> {
    SHADOW.with_borrow(Clone::clone)
}

/// Runs the same tests again under [`adopting`].
macro_rules! again_adopting {
    ($($test:ident),* $(,)?) => {
        mod adopting {
            $(#[test]
            fn $test() {
                crate::testing::shadow::adopting(super::$test);
            })*
        }
    };
}
pub(crate) use again_adopting;
