//! Tests of replicas over a directory in memory, with the paused clock of the test.

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use super::*;

/// Directory in memory that behaves like the directory in Redis.
#[derive(Default)]
pub(crate) struct Board(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    replicas: HashMap<ReplicaId, (Announcement, Instant)>,
    since: Option<Instant>,
    beat: Option<Instant>,
    reloads: u64,
    news: Vec<(ReplicaId, String)>,
    away: bool,
}

impl Entries {
    fn news_for(&self, own: ReplicaId, seen: Option<u64>) -> Vec<String> {
        let seen = seen.map_or(usize::MAX, |seen| seen as usize);
        let behind = self.news.iter().skip(seen);
        let others = behind.filter(|(by, _)| *by != own);
        others.map(|(_, news)| news.clone()).collect()
    }
}

impl Board {
    /// Creates a replica with that name on this board, which has not beaten yet.
    pub(crate) fn replica(self: &Arc<Self>, name: &str) -> Arc<Replicas> {
        Replicas::of(announcement(name), Arc::clone(self) as _)
    }

    /// Forgets all data, like a Redis that is started again.
    pub(crate) fn forget(&self) {
        *self.0.lock().expect("no panic") = Entries::default();
    }

    fn away(&self, away: bool) {
        self.0.lock().expect("no panic").away = away;
    }
}

#[async_trait]
impl ReplicaDirectory for Board {
    async fn beat(
        &self,
        own: &Announcement,
        seen: Option<u64>,
    ) -> Result<DirectoryReply, StoreError> {
        let now = Instant::now();
        let mut board = self.0.lock().expect("no panic");
        if board.away {
            return Err(StoreError("away".into()));
        }
        if board.beat.is_none_or(|beat| now - beat >= BEAT_LIFE) {
            board.since = Some(now);
        }
        board.beat = Some(now);
        let settled = board.since.is_some_and(|since| now - since >= BEAT_LIFE);
        let lives = |at: Instant| now - at < BEAT_LIFE;
        let known = board.replicas.get(&own.id);
        let rival = known.is_some_and(|(it, at)| it.incarnation != own.incarnation && lives(*at));
        let recognized = known.is_some_and(|(it, _)| it.incarnation == own.incarnation);
        if !rival {
            board.replicas.insert(own.id, (own.clone(), now));
        }
        let others = board.replicas.values();
        let others = others.filter(|(it, at)| it.id != own.id && lives(*at));
        Ok(DirectoryReply {
            others: others.map(|(it, _)| it.clone()).collect(),
            settled,
            rival,
            known: recognized,
            reloads: board.reloads,
            newest: board.news.len() as u64,
            news: board.news_for(own.id, seen),
            now: local_millis(),
        })
    }

    async fn tell(&self, own: ReplicaId, news: &[String]) -> Result<(), StoreError> {
        let mut board = self.0.lock().expect("no panic");
        if board.away {
            return Err(StoreError("away".into()));
        }
        board.news.extend(news.iter().map(|it| (own, it.clone())));
        Ok(())
    }

    async fn leave(&self, own: &Announcement) -> Result<(), StoreError> {
        self.0.lock().expect("no panic").replicas.remove(&own.id);
        Ok(())
    }

    async fn ask_reload(&self) -> Result<u64, StoreError> {
        let mut board = self.0.lock().expect("no panic");
        if board.away {
            return Err(StoreError("away".into()));
        }
        board.reloads += 1;
        Ok(board.reloads)
    }

    async fn take_budgets(
        &self,
        used: &[BudgetUse],
        _: usize,
    ) -> Result<Vec<Duration>, StoreError> {
        Ok(used.iter().map(|it| it.whole_in).collect())
    }
}

pub(crate) fn announcement(name: &str) -> Announcement {
    static INCARNATIONS: AtomicU64 = AtomicU64::new(1);
    Announcement {
        id: ReplicaId::named(name),
        name: name.into(),
        incarnation: INCARNATIONS.fetch_add(1, Ordering::Relaxed),
        address: Some("127.0.0.1:1".into()),
        process: None,
        key: "a key".into(),
        listeners: ["core".into()].into(),
        leaving: false,
        sources: None,
        reloaded: None,
        behind: false,
    }
}

/// Lets these replicas beat for `time`, by the clock of the test.
pub(crate) async fn beats(replicas: &[&Arc<Replicas>], time: Duration) {
    let end = Instant::now() + time;
    loop {
        for replica in replicas {
            let directory = replica.directory.as_ref().expect("a directory");
            replica.beat(&**directory).await;
        }
        if Instant::now() >= end {
            return;
        }
        tokio::time::advance(BEAT_EVERY).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_is_up_while_it_beats_and_gone_a_life_after_its_last_beat() {
    let board = Arc::new(Board::default());
    let (one, two) = (board.replica("one"), board.replica("two"));
    assert_eq!(one.standing(two.own()), ReplicaStatus::Unclear);
    assert_eq!(one.standing(one.own()), ReplicaStatus::Own);
    beats(&[&one, &two], BEAT_EVERY).await;
    assert!(matches!(one.standing(two.own()), ReplicaStatus::Up(it) if &*it.name == "two"));
    assert_eq!(
        one.standing(ReplicaId::named("three")),
        ReplicaStatus::Unclear
    );

    beats(&[&one], BEAT_LIFE).await;
    assert_eq!(one.standing(two.own()), ReplicaStatus::Gone);
    assert_eq!(one.standing(ReplicaId::named("three")), ReplicaStatus::Gone);
}

#[tokio::test(start_paused = true)]
async fn records_are_missing_while_another_replica_says_that_its_own_are_behind() {
    let board = Arc::new(Board::default());
    let (one, two) = (board.replica("one"), board.replica("two"));
    beats(&[&one, &two], BEAT_LIFE).await;
    for behind in [false, true, false] {
        two.set_behind(behind);
        beats(&[&two, &one], Duration::ZERO).await;
        assert_eq!(one.are_records_missing().await, behind);
    }
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_comes_back_buries_nobody_before_all_could_beat_again() {
    let board = Arc::new(Board::default());
    let (one, two) = (board.replica("one"), board.replica("two"));
    beats(&[&one, &two], BEAT_LIFE).await;
    board.away(true);
    beats(&[&one, &two], BEAT_LIFE * 3).await;
    assert!(
        matches!(one.standing(two.own()), ReplicaStatus::Up(_)),
        "as it was last heard"
    );
    board.away(false);
    beats(&[&one], Duration::ZERO).await;
    assert_eq!(one.standing(two.own()), ReplicaStatus::Unclear);
    beats(&[&one, &two], BEAT_LIFE).await;
    assert!(matches!(one.standing(two.own()), ReplicaStatus::Up(_)));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_silent_for_a_life_knows_it_after_its_next_beat() {
    let board = Arc::new(Board::default());
    let one = board.replica("one");
    beats(&[&one], BEAT_LIFE).await;
    let start = one.lapses().await;
    tokio::time::advance(BEAT_LIFE).await;
    beats(&[&one], Duration::ZERO).await;
    assert_eq!(one.lapses().await, start + 1);
    beats(&[&one], BEAT_LIFE * 2).await;
    assert_eq!(one.lapses().await, start + 1);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_heard_for_the_first_time_knows_that_it_was_silent_and_has_lost_nothing()
{
    let board = Arc::new(Board::default());
    let killed = board.replica("one");
    beats(&[&killed], BEAT_EVERY).await;
    let restarted = board.replica("one");
    beats(&[&restarted], BEAT_LIFE - BEAT_EVERY).await;
    assert!(restarted.is_refused());
    assert_eq!((restarted.lapses().await, restarted.losses()), (0, 0));
    beats(&[&restarted], BEAT_LIFE).await;
    assert!(!restarted.is_refused());
    assert_eq!((restarted.lapses().await, restarted.losses()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn two_processes_of_one_name_are_rivals_until_one_is_gone() {
    let board = Arc::new(Board::default());
    let (first, second) = (board.replica("one"), board.replica("one"));
    beats(&[&first, &second], BEAT_LIFE).await;
    let rival = |replica: &Replicas| replica.state().expect("many").rival;
    assert_eq!((rival(&first), rival(&second)), (false, true));
    assert_eq!(first.standing(first.own()), ReplicaStatus::Own);
    assert_eq!(second.standing(second.own()), ReplicaStatus::Unclear);
    beats(&[&second], BEAT_LIFE).await;
    assert!(!rival(&second));
    assert_eq!(second.standing(second.own()), ReplicaStatus::Own);
}

#[tokio::test(start_paused = true)]
async fn a_reload_reaches_the_other_replicas_once_and_not_the_one_that_asked() {
    let board = Arc::new(Board::default());
    let (one, two) = (board.replica("one"), board.replica("two"));
    beats(&[&one, &two], BEAT_EVERY).await;
    one.ask_reload().await.expect("works");
    let asked = AtomicUsize::new(0);
    for _ in 0..3 {
        for replica in [&one, &two] {
            let directory = replica.directory.as_ref().expect("a directory");
            if replica.beat(&**directory).await.reload.is_some() {
                assert_eq!(replica.name(), "two");
                asked.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    assert_eq!(asked.into_inner(), 1);
}

#[tokio::test(start_paused = true)]
async fn news_reach_the_other_replicas_once_and_after_a_directory_that_was_away() {
    let board = Arc::new(Board::default());
    let (one, two) = (board.replica("one"), board.replica("two"));
    let told = async || {
        let directory = one.directory.as_ref().expect("a directory");
        one.outbox.empty_into(&**directory, one.own()).await;
    };
    let heard = async |replica: &Replicas| {
        let directory = replica.directory.as_ref().expect("a directory");
        replica.beat(&**directory).await.news
    };
    one.tell("before the first beat of the other".into());
    told().await;
    assert!(heard(&two).await.is_empty());
    one.tell("a change".into());
    one.tell("a change".into());
    told().await;
    assert_eq!(heard(&two).await, ["a change"]);
    assert!(heard(&two).await.is_empty());
    assert!(heard(&one).await.is_empty());

    board.away(true);
    one.tell("another".into());
    told().await;
    board.away(false);
    told().await;
    assert_eq!(heard(&two).await, ["another"]);
}

#[tokio::test(start_paused = true)]
async fn a_replica_with_another_key_or_without_an_address_is_not_forwarded_to() {
    let board = Arc::new(Board::default());
    let one = board.replica("one");
    for (change, told) in [
        (
            (|it: &mut Announcement| it.key = "another".into()) as fn(&mut Announcement),
            "SESSION_KEY",
        ),
        (|it| it.address = None, "replicas.address"),
        (|it| it.listeners.clear(), "listeners of the same names"),
    ] {
        let mut other = announcement("two");
        change(&mut other);
        let why = one.obstacle(&other).expect("an obstacle");
        assert!(why.contains(told), "{why}");
    }
    assert_eq!(one.obstacle(&announcement("two")), None);
}

#[test]
fn names_make_numbers_that_are_never_the_one_of_a_gateway_alone() {
    assert_eq!(ReplicaId::named("one"), ReplicaId::named("one"));
    assert_ne!(ReplicaId::named("one"), ReplicaId::named("two"));
    assert_ne!(ReplicaId::named("one"), ReplicaId::ALONE);
}

/// Access of one process to the directory of a board.
struct Reached {
    board: Arc<Board>,
    is_local: bool,
    /// Time for which the process is frozen after each answer.
    late: Duration,
}

#[async_trait]
impl ReplicaDirectory for Reached {
    fn is_local(&self) -> bool {
        self.is_local
    }

    async fn beat(
        &self,
        own: &Announcement,
        seen: Option<u64>,
    ) -> Result<DirectoryReply, StoreError> {
        let heard = self.board.beat(own, seen).await;
        tokio::time::advance(self.late).await;
        heard
    }

    async fn tell(&self, own: ReplicaId, news: &[String]) -> Result<(), StoreError> {
        self.board.tell(own, news).await
    }

    async fn leave(&self, own: &Announcement) -> Result<(), StoreError> {
        self.board.leave(own).await
    }

    async fn ask_reload(&self) -> Result<u64, StoreError> {
        self.board.ask_reload().await
    }

    async fn take_budgets(
        &self,
        used: &[BudgetUse],
        replicas: usize,
    ) -> Result<Vec<Duration>, StoreError> {
        self.board.take_budgets(used, replicas).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_frozen_before_it_heard_the_answer_to_a_beat_knows_of_the_pause() {
    let board = Arc::new(Board::default());
    let one = board.replica("one");
    beats(&[&one], BEAT_LIFE).await;
    let late = Reached {
        board: Arc::clone(&board),
        is_local: false,
        late: BEAT_LIFE - BEAT_EVERY,
    };
    let start = one.lapses().await;
    one.beat(&late).await;
    assert_eq!(one.lapses().await, start);
    tokio::time::advance(BEAT_EVERY).await;
    // The directory saw a pause of `BEAT_LIFE`.
    one.beat(&*board).await;
    assert_eq!(one.lapses().await, start + 1);
}

#[tokio::test(start_paused = true)]
async fn the_outcome_of_a_reload_is_known_of_each_replica_or_pending() {
    let board = Arc::new(Board::default());
    let (one, two, three) = (
        board.replica("one"),
        board.replica("two"),
        board.replica("three"),
    );
    let all = [&one, &two, &three];
    beats(&all, BEAT_LIFE).await;
    one.ask_reload().await.expect("told");
    assert_eq!(one.beat(&*board).await.reload, None, "it has made its own");
    assert_eq!(two.beat(&*board).await.reload, Some(1));
    assert_eq!(two.beat(&*board).await.reload, None, "told once");
    let made = |number, counts| AnnouncedReload { number, counts };
    two.note_reload(made(1, Some((3, 1))));
    beats(&[&two, &one], Duration::ZERO).await;
    let reload = |name: &str, outcome, counts: Option<(usize, usize)>| OtherReload {
        name: name.into(),
        outcome,
        namespaces: counts.map(|it| it.0),
        failed: counts.map(|it| it.1),
    };
    let of_two = reload("two", OtherReloadOutcome::Ok, Some((3, 1)));
    let pending = reload("three", OtherReloadOutcome::Pending, None);
    assert_eq!(
        one.other_reloads().await.expect("replicas"),
        [pending, of_two.clone()]
    );

    let (answer, ()) = tokio::join!(one.other_reloads(), async {
        three.note_reload(made(1, None));
        beats(&[&three, &one], Duration::ZERO).await;
    });
    let failed = reload("three", OtherReloadOutcome::Failed, None);
    assert_eq!(answer.expect("replicas"), [failed, of_two]);

    // The store has lost its data and counts anew: earlier reloads do not answer this one.
    board.forget();
    beats(&all, BEAT_EVERY).await;
    one.ask_reload().await.expect("told");
    beats(&all, Duration::ZERO).await;
    let pending = ["three", "two"].map(|name| reload(name, OtherReloadOutcome::Pending, None));
    assert_eq!(one.other_reloads().await.expect("replicas"), pending);
    board.away(true);
    one.ask_reload().await.expect_err("away");
    let untold = ["three", "two"].map(|name| reload(name, OtherReloadOutcome::NotTold, None));
    assert_eq!(one.other_reloads().await.expect("replicas"), untold);
    assert_eq!(Replicas::alone().other_reloads().await, None);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_replica_on_this_machine_is_found_without_a_wait_for_the_next_beat() {
    let board = Arc::new(Board::default());
    let local = Reached {
        board: Arc::clone(&board),
        is_local: true,
        late: Duration::ZERO,
    };
    let one = Replicas::of(announcement("one"), Arc::new(local));
    let (two, three) = (board.replica("two"), board.replica("three"));
    beats(&[&one, &two, &three], BEAT_LIFE).await;
    let running = Arc::clone(&one);
    let running = tokio::spawn(async move { running.run(|_| (), |_| (), || "".into()).await });
    // The first beat of the run is over, and the next one is due in half a second.
    tokio::time::sleep(Duration::from_millis(1)).await;
    two.leave_directory().await;
    let before = Instant::now();
    assert!(matches!(one.standing(two.own()), ReplicaStatus::Up(_)));
    assert_eq!(one.departure(two.own()).await, ReplicaStatus::Gone);
    assert!(matches!(one.standing(three.own()), ReplicaStatus::Up(_)));
    assert!(!one.has_just_ended(three.own()).await);
    three.leave_directory().await;
    assert!(one.has_just_ended(three.own()).await);
    assert!(!one.are_records_missing().await);
    assert_eq!(before.elapsed(), Duration::ZERO);
    running.abort();
}

#[tokio::test]
async fn requests_go_to_trusted_addresses_alone() {
    let board = Arc::new(Board::default());
    let one = board.replica("one");
    let at = |address: &str| Announcement {
        address: Some(address.into()),
        ..announcement("two")
    };
    let is_trusted = |address: &str| one.obstacle(&at(address)).is_none();
    assert!(is_trusted("10.0.0.7:7100"), "all that the store tells");
    let trusted = ["Gateway-1:7100", "[::0001]:7100", "10.0.0.8:7100"];
    assert!(one.forward_only_to(trusted.map(str::to_owned).into()));
    for address in ["gateway-1:7100", "[::1]:7100", "10.0.0.8:7100"] {
        assert!(is_trusted(address), "{address}");
    }
    for address in [
        "gateway-1:7101",
        "gateway-2:7100",
        "10.0.0.7:7100",
        "10.0.0.8:71000",
    ] {
        assert!(!is_trusted(address), "{address}");
    }
    assert!(
        !one.forward_only_to(trusted.map(str::to_owned).into()),
        "the same"
    );
    assert!(one.forward_only_to(BTreeSet::new()));
    assert!(!is_trusted("10.0.0.8:7100"));
}

#[tokio::test(start_paused = true)]
async fn a_replica_answers_for_a_successor_at_its_address_once_it_leaves_and_for_no_other() {
    let board = Arc::new(Board::default());
    let at = |name: &str, address: &str| Announcement {
        address: Some(address.into()),
        ..announcement(name)
    };
    let replica = |own| Replicas::of(own, Arc::clone(&board) as _);
    let one = replica(at("one", "10.0.0.7:7100"));
    let successor = replica(at("one~2", "10.0.0.7:7100"));
    let other = replica(at("other", "10.0.0.8:7100"));
    successor.set_predecessor(one.own());
    beats(&[&one, &successor, &other], BEAT_LIFE).await;
    assert!(one.answers_for(one.own()) && !one.answers_for(successor.own()));
    assert!(successor.answers_for(one.own()) && !successor.answers_for(other.own()));
    one.leave().await;
    assert!(one.answers_for(successor.own()) && !one.answers_for(other.own()));
}

/// Request for a session of another replica that cannot be reached.
struct UnsentRequest {
    home: ReplicaId,
    sent: usize,
}

impl RoutedRequest for UnsentRequest {
    type Answer = ();

    async fn here(&mut self) -> Result<(), ReplicaId> {
        Err(self.home)
    }

    async fn there(&mut self, _: &Announcement) -> Result<(), ForwardError> {
        self.sent += 1;
        Err(ForwardError::Repeatable)
    }

    fn may_be_forwarded(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_to_a_replica_that_is_known_as_unreachable_waits_for_nothing() {
    let board = Arc::new(Board::default());
    let (one, two) = (board.replica("one"), board.replica("two"));
    let beats = [Arc::clone(&one), Arc::clone(&two)].map(|replica| {
        tokio::spawn(async move { replica.run(|_| (), |_| (), || "".into()).await })
    });
    let mut other = None;
    while other.is_none() {
        tokio::time::sleep(BEAT_EVERY).await;
        other = one.forwarded_to().pop();
    }
    let mut request = UnsentRequest {
        home: two.own(),
        sent: 0,
    };
    let begun = Instant::now();
    assert_eq!(
        one.route(&mut request).await,
        Err(RoutingError::Unreachable)
    );
    assert!(begun.elapsed() >= WAIT_MAX, "the replica may be gone soon");

    one.note_unreachable(&other.expect("the other"), Some("refused".into()));
    assert_eq!(one.unreachable(), 1);
    request.sent = 0;
    let begun = Instant::now();
    assert_eq!(
        one.route(&mut request).await,
        Err(RoutingError::Unreachable)
    );
    assert_eq!((request.sent, begun.elapsed()), (1, Duration::ZERO));
    beats.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn a_rival_is_told_once_it_outlives_the_last_beat_of_a_killed_process() {
    let board = Arc::new(Board::default());
    let told = |replica: &Replicas| replica.known.borrow().rival_told;
    let killed = board.replica("one");
    beats(&[&killed], BEAT_EVERY).await;
    let restarted = board.replica("one");
    for _ in 0..6 {
        beats(&[&restarted], BEAT_EVERY).await;
        assert!(!told(&restarted), "the process met its own last beat");
    }
    let second = board.replica("one");
    beats(&[&restarted, &second], 2 * BEAT_LIFE).await;
    assert_eq!((told(&restarted), told(&second)), (false, true));
}
