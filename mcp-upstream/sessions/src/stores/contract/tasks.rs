//! Contract of stores of tasks: facts that hold for memory, disk and Redis.

use std::any::Any;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::replicas::ReplicaId;
use crate::tasks::{
    InsertedTask, StoredTask, TaskBounds, TaskEnd, TaskEvent, TaskOutcome, TaskOwner, TaskRecord,
    TaskStatus, TaskStore, UpdatedTask, unix_millis,
};

/// A store under test, with the resource that lives until the test ends.
pub(crate) struct MadeTasks {
    pub(crate) store: Arc<dyn TaskStore>,
    pub(crate) guard: Box<dyn Any>,
}

/// Time after which the tasks of these tests expire: an hour.
const TTL: u64 = 3_600_000;

/// Generates one test per fact for a store of tasks.
macro_rules! tasks_hold_for {
    ($make:ident) => {
        crate::stores::contract::holds_in!(crate::stores::contract::tasks, $make:
            a_task_is_loaded_as_it_was_stored,
            a_task_that_has_ended_changes_no_more,
            one_of_two_ends_wins,
            an_expired_task_is_gone,
            a_list_has_the_tasks_of_its_owner_alone,
            a_principal_has_a_bounded_number_of_tasks_in_all_namespaces,
            a_principal_with_large_results_creates_no_further_task,
            all_tasks_together_are_bounded,
            an_outcome_beyond_the_bytes_of_its_principal_is_not_stored,
            an_outcome_beyond_the_bytes_of_all_is_not_stored,
            a_small_outcome_is_stored_in_any_case,
            the_tasks_of_a_forgotten_principal_are_deleted,
            an_update_creates_no_task,
        );
    };
}
pub(crate) use tasks_hold_for;

fn owner(principal: Option<&str>, namespace: &str) -> TaskOwner {
    TaskOwner {
        principal: principal.map(Into::into),
        namespace: namespace.parse().expect("a name"),
    }
}

fn record_of(owner: TaskOwner) -> TaskRecord {
    TaskRecord::new(owner, "tool".into(), ReplicaId(7), TTL).expect("randomness")
}

fn record() -> TaskRecord {
    record_of(owner(Some("ada"), "shared"))
}

fn result(text: &str) -> TaskOutcome {
    TaskOutcome::Result(text.into())
}

impl MadeTasks {
    async fn insert(&self, record: &TaskRecord) -> InsertedTask {
        self.insert_within(record, TaskBounds::default()).await
    }

    async fn insert_within(&self, record: &TaskRecord, bounds: TaskBounds) -> InsertedTask {
        self.store.create(record, bounds).await.expect("works")
    }

    async fn load(&self, id: &str) -> Option<StoredTask> {
        self.store.find(id).await.expect("works")
    }

    async fn update(&self, record: &TaskRecord, outcome: Option<&TaskOutcome>) -> bool {
        let bounds = TaskBounds::default();
        let updated = self.store.update(record, outcome, bounds).await;
        updated.expect("works") == UpdatedTask::Stored
    }

    /// Creates a task of a principal, and stores a result of `bytes` bytes as its outcome.
    async fn end_with(&self, principal: &str, bytes: usize, bounds: TaskBounds) -> UpdatedTask {
        let mut task = record_of(owner(Some(principal), "shared"));
        let inserted = self.insert(&task).await;
        assert_eq!(inserted, InsertedTask::Stored);
        let before = task.clone();
        task.apply(TaskEvent::Ended(TaskEnd::Completed));
        let outcome = result(&"x".repeat(bytes - 1));
        let updated = self.store.update(&task, Some(&outcome), bounds).await;
        let updated = updated.expect("works");
        let loaded = self.load(&task.id).await.expect("a task");
        let (record, outcome) = match updated {
            UpdatedTask::Stored => (task, Some(outcome)),
            UpdatedTask::Over | UpdatedTask::TooLarge => (before, None),
        };
        assert_eq!(loaded, StoredTask { record, outcome });
        updated
    }

    async fn ids(&self, owner: &TaskOwner) -> Vec<Arc<str>> {
        let listed = self.store.list(owner).await.expect("works");
        listed.into_iter().map(|record| record.id).collect()
    }
}

macro_rules! fact {
    ($name:ident, |$made:ident| $body:block) => {
        pub(crate) async fn $name(make: impl AsyncFn() -> MadeTasks) {
            let $made = make().await;
            $body
            drop($made.guard);
        }
    };
}

fact!(a_task_is_loaded_as_it_was_stored, |made| {
    let mut task = record();
    assert_eq!(made.load(&task.id).await, None);
    assert_eq!(made.insert(&task).await, InsertedTask::Stored);
    let stored = |record: &TaskRecord, outcome: Option<TaskOutcome>| {
        Some(StoredTask {
            record: record.clone(),
            outcome,
        })
    };
    assert_eq!(made.load(&task.id).await, stored(&task, None));
    task.message = Some("ö \"half\" done\n".into());
    assert!(task.apply(TaskEvent::Asked));
    assert!(made.update(&task, None).await);
    assert_eq!(made.load(&task.id).await, stored(&task, None));
    assert!(task.apply(TaskEvent::Ended(TaskEnd::Completed)));
    let outcome = result("{\"n\":1.50,\"ö\":\"\\u0000\"}");
    assert!(made.update(&task, Some(&outcome)).await);
    assert_eq!(made.load(&task.id).await, stored(&task, Some(outcome)));
});

fact!(a_task_that_has_ended_changes_no_more, |made| {
    for end in [TaskEnd::Completed, TaskEnd::Failed, TaskEnd::Cancelled] {
        let task = record();
        made.insert(&task).await;
        let mut ended = task.clone();
        ended.apply(TaskEvent::Ended(end));
        assert!(made.update(&ended, Some(&result("1"))).await);
        let mut late = task.clone();
        late.apply(TaskEvent::Ended(TaskEnd::Completed));
        assert!(!made.update(&late, Some(&result("2"))).await);
        assert!(!made.update(&task, None).await);
        let loaded = made.load(&task.id).await.expect("a task");
        assert_eq!(loaded.record, ended);
        assert_eq!(loaded.outcome, Some(result("1")));
    }
});

fact!(one_of_two_ends_wins, |made| {
    for _ in 0..20 {
        let task = record();
        made.insert(&task).await;
        let ended = |end| {
            let mut ended = task.clone();
            ended.apply(TaskEvent::Ended(end));
            ended
        };
        let (one, two) = (ended(TaskEnd::Completed), ended(TaskEnd::Cancelled));
        let (first, second) = tokio::join!(made.update(&one, None), made.update(&two, None));
        assert!(first != second, "{first} {second}");
        let loaded = made.load(&task.id).await.expect("a task");
        let winner = if first { one } else { two };
        assert_eq!(loaded.record, winner);
    }
});

fact!(an_expired_task_is_gone, |made| {
    let mut task = record();
    task.ttl = 1;
    task.created = unix_millis() - 1000;
    let bounds = TaskBounds {
        per_principal: 1,
        total: 1,
        ..TaskBounds::default()
    };
    for _ in 0..3 {
        // Expired tasks count for no bound.
        let inserted = made.insert_within(&task, bounds).await;
        assert_eq!(inserted, InsertedTask::Stored);
        assert_eq!(made.load(&task.id).await, None);
        assert!(made.ids(&task.owner).await.is_empty());
        task.apply(TaskEvent::Ended(TaskEnd::Completed));
        assert!(!made.update(&task, Some(&result("1"))).await);
        task = TaskRecord {
            created: task.created,
            ttl: 1,
            ..record()
        };
    }
    let next = record();
    let inserted = made.insert_within(&next, bounds).await;
    assert_eq!(inserted, InsertedTask::Stored);
    assert!(made.load(&next.id).await.is_some());
});

fact!(a_list_has_the_tasks_of_its_owner_alone, |made| {
    let ada = owner(Some("ada"), "shared");
    let mut expected = Vec::new();
    for number in 0..5 {
        let mut task = record_of(ada.clone());
        task.created += number;
        made.insert(&task).await;
        expected.insert(0, Arc::clone(&task.id));
    }
    let others = [
        owner(Some("bob"), "shared"),
        owner(Some("ada"), "other"),
        owner(None, "shared"),
    ];
    for other in &others {
        assert!(made.ids(other).await.is_empty());
        made.insert(&record_of(other.clone())).await;
    }
    assert_eq!(made.ids(&ada).await, expected);
    for other in &others {
        assert_eq!(made.ids(other).await.len(), 1, "{other:?}");
    }
});

fact!(
    a_principal_has_a_bounded_number_of_tasks_in_all_namespaces,
    |made| {
        let bounds = TaskBounds {
            per_principal: 3,
            ..TaskBounds::default()
        };
        for namespace in ["one", "two", "three"] {
            let task = record_of(owner(Some("ada"), namespace));
            let inserted = made.insert_within(&task, bounds).await;
            assert_eq!(inserted, InsertedTask::Stored);
        }
        let task = record();
        let inserted = made.insert_within(&task, bounds).await;
        assert_eq!(inserted, InsertedTask::PrincipalFull);
        assert_eq!(made.load(&task.id).await, None);
        let other = record_of(owner(Some("bob"), "shared"));
        let inserted = made.insert_within(&other, bounds).await;
        assert_eq!(inserted, InsertedTask::Stored);
        // Many at once are counted one by one.
        let many: Vec<_> = std::iter::repeat_with(|| record_of(owner(Some("eve"), "shared")))
            .take(10)
            .collect();
        let inserts = many.iter().map(|task| made.insert_within(task, bounds));
        let inserted = join_all(inserts).await.into_iter();
        let stored = inserted.filter(|it| *it == InsertedTask::Stored);
        assert_eq!(stored.count(), 3);
    }
);

fact!(
    a_principal_with_large_results_creates_no_further_task,
    |made| {
        let bounds = TaskBounds {
            bytes_per_principal: 100,
            ..TaskBounds::default()
        };
        for (bytes, then) in [(97, InsertedTask::Stored), (2, InsertedTask::PrincipalFull)] {
            let mut task = record();
            let inserted = made.insert_within(&task, bounds).await;
            assert_eq!(inserted, InsertedTask::Stored);
            task.apply(TaskEvent::Ended(TaskEnd::Completed));
            assert!(made.update(&task, Some(&result(&"x".repeat(bytes)))).await);
            assert_eq!(made.insert_within(&record(), bounds).await, then);
        }
        let other = record_of(owner(Some("bob"), "shared"));
        let inserted = made.insert_within(&other, bounds).await;
        assert_eq!(inserted, InsertedTask::Stored);
    }
);

fact!(all_tasks_together_are_bounded, |made| {
    let bounds = TaskBounds {
        total: 2,
        ..TaskBounds::default()
    };
    for (principal, expected) in [
        ("ada", InsertedTask::Stored),
        ("bob", InsertedTask::Stored),
        ("eve", InsertedTask::Full),
    ] {
        let task = record_of(owner(Some(principal), "shared"));
        assert_eq!(made.insert_within(&task, bounds).await, expected);
    }
});

fact!(
    an_outcome_beyond_the_bytes_of_its_principal_is_not_stored,
    |made| {
        let bounds = TaskBounds {
            bytes_per_principal: 100,
            small_outcome: 1,
            ..TaskBounds::default()
        };
        for (bytes, then) in [
            (60, UpdatedTask::Stored),
            (41, UpdatedTask::TooLarge),
            (40, UpdatedTask::Stored),
            (2, UpdatedTask::TooLarge),
        ] {
            assert_eq!(made.end_with("ada", bytes, bounds).await, then, "{bytes}");
        }
        let other = made.end_with("bob", 100, bounds).await;
        assert_eq!(other, UpdatedTask::Stored);
        // Outcomes of tasks that end at the same time are counted one by one.
        let ends = (0..10).map(|_| made.end_with("eve", 30, bounds));
        let ended = join_all(ends).await.into_iter();
        assert_eq!(ended.filter(|it| *it == UpdatedTask::Stored).count(), 3);
    }
);

fact!(an_outcome_beyond_the_bytes_of_all_is_not_stored, |made| {
    let bounds = TaskBounds {
        bytes_total: 100,
        small_outcome: 1,
        ..TaskBounds::default()
    };
    for (principal, bytes, then) in [
        ("ada", 60, UpdatedTask::Stored),
        ("bob", 41, UpdatedTask::TooLarge),
        ("bob", 40, UpdatedTask::Stored),
        ("eve", 2, UpdatedTask::TooLarge),
    ] {
        let updated = made.end_with(principal, bytes, bounds).await;
        assert_eq!(updated, then, "{principal} {bytes}");
    }
    let inserted = made.insert_within(&record(), bounds).await;
    assert_eq!(inserted, InsertedTask::Full);
});

fact!(a_small_outcome_is_stored_in_any_case, |made| {
    let bounds = TaskBounds {
        bytes_per_principal: 1,
        bytes_total: 1,
        small_outcome: 10,
        ..TaskBounds::default()
    };
    for (bytes, then) in [
        (11, UpdatedTask::TooLarge),
        (10, UpdatedTask::Stored),
        (10, UpdatedTask::Stored),
    ] {
        assert_eq!(made.end_with("ada", bytes, bounds).await, then, "{bytes}");
    }
});

fact!(the_tasks_of_a_forgotten_principal_are_deleted, |made| {
    let bounds = TaskBounds {
        per_principal: 2,
        total: 3,
        bytes_per_principal: 1,
        bytes_total: 2,
        ..TaskBounds::default()
    };
    let mut others = [
        record_of(owner(Some("bob"), "one")),
        record_of(owner(None, "one")),
    ];
    for other in &others {
        made.insert(other).await;
    }
    made.store.forget("ada").await.expect("works");
    let mut ended = record_of(owner(Some("ada"), "one"));
    let running = record_of(owner(Some("ada"), "two"));
    for task in [&ended, &running] {
        made.insert(task).await;
    }
    ended.apply(TaskEvent::Ended(TaskEnd::Completed));
    assert!(made.update(&ended, Some(&result("1"))).await);
    made.store.forget("ada").await.expect("works");
    for task in [&ended, &running] {
        assert_eq!(made.load(&task.id).await, None);
        assert!(made.ids(&task.owner).await.is_empty());
        assert!(!made.update(task, None).await);
    }
    // Forgotten tasks count for no bound.
    let next = record_of(owner(Some("ada"), "one"));
    let inserted = made.insert_within(&next, bounds).await;
    assert_eq!(inserted, InsertedTask::Stored);
    for other in &mut others {
        assert_eq!(made.ids(&other.owner).await, [Arc::clone(&other.id)]);
        other.apply(TaskEvent::Ended(TaskEnd::Completed));
        assert!(made.update(other, Some(&result("1"))).await);
    }
});

fact!(an_update_creates_no_task, |made| {
    let mut task = record();
    assert!(!made.update(&task, None).await);
    task.apply(TaskEvent::Ended(TaskEnd::Completed));
    assert_eq!(task.status, TaskStatus::Completed);
    assert!(!made.update(&task, Some(&result("1"))).await);
    assert_eq!(made.load(&task.id).await, None);
});
