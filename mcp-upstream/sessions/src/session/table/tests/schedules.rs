//! Claims of a session by several processes of a replica, in every order of their operations at the store.
//!
//! A process that asks after another process has claimed the session takes the session over, as after a restart. Two processes
//! that ask at the same time never both get the session.

use std::cell::RefCell;

use super::*;
use crate::testing::schedule::{Schedule, Task, every, some};

/// Session whose process has ended, and the store that has its record.
struct Left {
    shadow: Arc<Shadow>,
    id: String,
}

impl Left {
    fn new(schedule: &mut Schedule) -> Self {
        let shadow = Arc::new(Shadow::default());
        let before = table(ROOMY, Some(shadow.stores()));
        let id = RefCell::new(String::new());
        schedule.run(vec![Box::pin(async {
            let session = open(&before, "a", Instant::now()).await;
            id.replace(session.id().as_str().to_owned());
        })]);
        let id = id.take();
        Self { shadow, id }
    }

    fn process(&self) -> SessionTable {
        table(ROOMY, Some(self.shadow.stores()))
    }
}

/// Returns a task that looks a session up at a process, and adds the result to `found`.
fn request<'a>(
    process: &'a SessionTable,
    id: &'a str,
    found: &'a RefCell<Vec<Result<Located, StoreError>>>,
) -> Task<'a> {
    Box::pin(async move {
        let located = process.locate(id, Instant::now()).await;
        found.borrow_mut().push(located);
    })
}

fn adopted(found: &[Result<Located, StoreError>]) -> usize {
    let is_adopted = |it: &&Result<Located, StoreError>| matches!(it, Ok(Located::Adopted(_)));
    found.iter().filter(is_adopted).count()
}

/// Sends `requests` requests to one process and a request to another. Checks that no home (a process that has the session, with
/// its epoch) is claimed twice.
fn claimed_once(schedule: &mut Schedule, requests: usize) {
    let left = Left::new(schedule);
    let (one, two) = (left.process(), left.process());
    let found = RefCell::new(Vec::new());
    let mut tasks: Vec<Task<'_>> = (0..requests)
        .map(|_| request(&one, &left.id, &found))
        .collect();
    tasks.push(request(&two, &left.id, &found));
    schedule.run(tasks);
    let adopted = adopted(&found.borrow());
    assert!((1..=2).contains(&adopted), "{adopted} adoptions");
    assert_eq!(left.shadow.claims(), adopted);
    assert_eq!(one.count() + two.count(), adopted);
    let record = left.shadow.record(&left.id).expect("it is recorded");
    assert_eq!(
        record.home.epoch as usize, adopted,
        "a home is claimed twice"
    );
    books_balance(&one);
    books_balance(&two);
}

#[test]
fn in_every_order_of_two_processes_no_home_of_a_session_is_claimed_twice() {
    let count = every(|schedule| claimed_once(schedule, 1));
    println!("{count} orders");
    assert!(count > 20, "{count} orders");
}

#[test]
fn in_many_orders_of_several_requests_no_home_of_a_session_is_claimed_twice() {
    some(500, |schedule| claimed_once(schedule, 3));
}

#[test]
fn a_store_that_fails_at_any_moment_neither_doubles_nor_loses_a_session() {
    let count = every(|schedule| {
        let left = Left::new(schedule);
        let (one, two) = (left.process(), left.process());
        let found = RefCell::new(Vec::new());
        let failure: Task<'_> = Box::pin(async { left.shadow.fail(1) });
        schedule.run(vec![
            request(&one, &left.id, &found),
            request(&two, &left.id, &found),
            failure,
        ]);
        assert_eq!(one.count() + two.count(), adopted(&found.borrow()));
        let record = left.shadow.record(&left.id).expect("it is recorded");
        assert_eq!(record.home.epoch as usize, left.shadow.claims());
        // Cancels a failure that has not occurred yet, so that the next request succeeds.
        left.shadow.fail(0);
        let again = left.process();
        let found = RefCell::new(Vec::new());
        schedule.run(vec![request(&again, &left.id, &found)]);
        assert_eq!(adopted(&found.borrow()), 1, "the session is lost");
    });
    println!("{count} orders");
}
