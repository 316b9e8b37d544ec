//! The pins of a namespace with their file: restarts, several gateways, files that cannot be read.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use tooldock_base::config::PinMode;
use tooldock_base::names::NamespaceName;

use super::{ListPage, NamespacePins, PINS_FILE, PageEntry, PinKind, PinState, Pins};

fn name() -> NamespaceName {
    "git".parse().expect("a name")
}

fn tool(name: &str, about: &str) -> String {
    format!(r#"{{"name":"{name}","description":"{about}"}}"#)
}

/// The tools of a page that may be shown.
fn shown(pins: &NamespacePins, tools: &[(&str, &str)]) -> Vec<String> {
    let texts: Vec<_> = tools
        .iter()
        .map(|(name, about)| tool(name, about))
        .collect();
    let entries = tools.iter().zip(&texts).map(|((name, _), text)| PageEntry {
        name: Some((*name).into()),
        definition: text,
    });
    let page = ListPage {
        kind: PinKind::Tool,
        entries: entries.collect(),
        first: true,
        last: true,
    };
    let judgement = pins.judge(&page);
    let tools = tools.iter().zip(&*judgement).filter(|(_, shown)| **shown);
    tools.map(|((name, _), _)| (*name).to_owned()).collect()
}

fn opened(folder: &Path) -> (Arc<Pins>, Arc<NamespacePins>) {
    let pins = Pins::open(folder.join(PINS_FILE));
    let own = pins.of(&name());
    own.set_mode(PinMode::Enforce);
    (pins, own)
}

fn states(pins: &Pins) -> Vec<(String, PinState)> {
    let all = pins.list(None, None, |_| true).into_iter();
    all.map(|it| (it.name, it.state)).collect()
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn enforced_pins_hide_changed_and_new_definitions_until_they_are_approved() {
    let folder = folder();
    let (pins, own) = opened(folder.path());
    assert_eq!(shown(&own, &[("a", "x"), ("b", "x")]), ["a", "b"]);
    assert_eq!(shown(&own, &[("a", "y"), ("b", "x"), ("c", "x")]), ["b"]);
    assert_eq!(
        states(&pins),
        [
            ("a".to_owned(), PinState::Changed),
            ("b".to_owned(), PinState::Approved),
            ("c".to_owned(), PinState::New),
        ]
    );
    let said = own.held_back(PinKind::Tool, "a").expect("hidden");
    assert!(said.contains("approval of an operator"), "{said}");
    assert!(!said.contains("tooldock"), "{said}");
    assert_eq!(own.held_back(PinKind::Tool, "b"), None);
    let before = own.generation();
    let approved = pins.approve(&name(), Some("a"), None).expect("written");
    assert_eq!(approved.approved.len(), 1);
    assert!(own.generation() > before);
    assert_eq!(
        shown(&own, &[("a", "y"), ("b", "x"), ("c", "x")]),
        ["a", "b"]
    );
    assert_eq!(own.held_back(PinKind::Tool, "a"), None);
    // Both versions are approved: lists may differ by principal.
    assert_eq!(shown(&own, &[("a", "x")]), ["a"]);
    pins.approve(&name(), None, None).expect("written");
    assert_eq!(shown(&own, &[("c", "x")]), ["c"]);
}

#[test]
fn a_restart_keeps_records_and_decisions() {
    let folder = folder();
    let (pins, own) = opened(folder.path());
    shown(&own, &[("a", "x"), ("b", "x")]);
    shown(&own, &[("a", "y"), ("b", "y")]);
    pins.approve(&name(), Some("b"), None).expect("written");
    drop((pins, own));
    let (pins, own) = opened(folder.path());
    assert_eq!(shown(&own, &[("a", "y"), ("b", "y"), ("c", "x")]), ["b"]);
    pins.settle();
    let (pins, _) = opened(folder.path());
    assert_eq!(states(&pins)[2], ("c".to_owned(), PinState::New));
}

#[test]
fn warned_pins_show_everything_and_report_a_change_once() {
    let folder = folder();
    let (pins, own) = opened(folder.path());
    own.set_mode(PinMode::Warn);
    let events = Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = Arc::clone(&events);
    pins.observe(Box::new(move |event| {
        told.lock()
            .expect("events")
            .push((event.name.clone(), event.state));
    }));
    shown(&own, &[("a", "x")]);
    for _ in 0..3 {
        assert_eq!(shown(&own, &[("a", "y"), ("b", "x")]), ["a", "b"]);
        assert_eq!(shown(&own, &[("a", "x"), ("b", "x")]), ["a", "b"]);
    }
    assert_eq!(
        *events.lock().expect("events"),
        [("a".to_owned(), PinState::Changed)]
    );
    // A change that was served stays to be approved when pins are enforced later.
    own.set_mode(PinMode::Enforce);
    assert_eq!(shown(&own, &[("a", "y"), ("b", "x")]), ["b"]);
    own.set_mode(PinMode::Off);
    assert_eq!(shown(&own, &[("a", "z")]), ["a"]);
    assert_eq!(events.lock().expect("events").len(), 1);
}

#[test]
fn a_definition_with_findings_is_hidden_even_on_the_first_list() {
    let folder = folder();
    let (pins, own) = opened(folder.path());
    let hidden = "Adds.\u{200b}";
    assert_eq!(shown(&own, &[("a", hidden), ("b", "x")]), ["b"]);
    let pin = &pins.list(Some("git"), Some("a"), |_| true)[0];
    assert_eq!(pin.state, PinState::Suspicious);
    assert_eq!(pin.pending[0].findings[0].code, "hidden_character");
    let definition = pin.pending[0].definition.as_deref().expect("recorded");
    assert!(definition.contains("\\u{200b}"), "{definition}");
    // A name that looks like that of another server's tool.
    let other = pins.of(&"mail".parse().expect("a name"));
    other.set_mode(PinMode::Enforce);
    assert_eq!(shown(&other, &[("list_mail", "x")]), ["list_mail"]);
    assert_eq!(shown(&own, &[("Iist_mail", "x"), ("b", "x")]), ["b"]);
    let pin = &pins.list(Some("git"), Some("Iist_mail"), |_| true)[0];
    let codes: Vec<_> = pin.pending[0].findings.iter().map(|it| &*it.code).collect();
    assert_eq!(codes, ["look_alike"]);
}

#[test]
fn an_entry_without_a_name_is_shown_only_where_pins_are_not_enforced() {
    let (_pins, own) = opened(folder().path());
    let page = ListPage {
        kind: PinKind::Tool,
        entries: vec![PageEntry {
            name: None,
            definition: "{}",
        }],
        first: true,
        last: true,
    };
    assert_eq!(*own.judge(&page), [false]);
    own.set_mode(PinMode::Warn);
    assert_eq!(*own.judge(&page), [true]);
}

#[test]
fn a_file_that_cannot_be_read_is_kept_and_approves_nothing() {
    let newer = r#"{"format":2,"pins":[]}"#;
    for text in [
        "{\"format\":1,",
        "[]",
        newer,
        r#"{"format":1,"namespaces":{"git":5}}"#,
    ] {
        let folder = folder();
        let file = folder.path().join(PINS_FILE);
        fs::write(&file, text).expect("a file");
        let (pins, own) = opened(folder.path());
        let problem = pins.problem().expect("a problem");
        assert!(problem.contains("pins.json"), "{problem}");
        assert_eq!(
            problem.contains("newer version"),
            text == newer,
            "{problem}"
        );
        assert_eq!(shown(&own, &[("a", "x")]), Vec::<String>::new());
        pins.settle();
        let refused = pins.approve(&name(), None, None).expect_err("not readable");
        assert_eq!(refused.to_string(), problem);
        assert_eq!(fs::read_to_string(&file).expect("a file"), text);
        own.set_mode(PinMode::Warn);
        assert_eq!(shown(&own, &[("a", "x")]), ["a"]);
        own.set_mode(PinMode::Enforce);
        // Once it is moved away, the definitions are recorded anew.
        fs::remove_file(&file).expect("removed");
        pins.settle();
        assert_eq!(pins.problem(), None);
        assert_eq!(shown(&own, &[("a", "x")]), ["a"], "{text}");
        assert!(file.exists());
    }
}

#[test]
fn gateways_that_share_the_file_keep_each_others_records_and_decisions() {
    let folder = folder();
    let (first, of_first) = opened(folder.path());
    let (second, of_second) = opened(folder.path());
    shown(&of_first, &[("a", "x"), ("b", "x")]);
    first.settle();
    // The second gateway has not read the file yet, and sees the same list.
    shown(&of_second, &[("a", "x"), ("b", "x")]);
    let other = second.of(&"mail".parse().expect("a name"));
    other.set_mode(PinMode::Enforce);
    shown(&other, &[("send", "x")]);
    second.settle();
    first.settle();
    assert_eq!(states(&first).len(), 3);
    shown(&of_first, &[("a", "y"), ("b", "x")]);
    first.settle();
    let before = of_second.generation();
    first.approve(&name(), Some("a"), None).expect("written");
    second.settle();
    assert!(of_second.generation() > before);
    assert_eq!(shown(&of_second, &[("a", "y")]), ["a"]);
    // A record that one of them drops does not come back by a sighting of the other that was written before.
    second.forget(&name(), Some("b")).expect("written");
    first.settle();
    assert_eq!(states(&first).iter().filter(|(it, _)| it == "b").count(), 0);
}

/// The namespaces with a decision of which clients have not been told by `list_changed` yet.
fn announced(pins: &Pins) -> Vec<String> {
    let names = std::mem::take(&mut *super::lock(&pins.decided));
    names.into_iter().map(|it| it.to_string()).collect()
}

#[test]
fn records_of_other_gateways_are_no_decision_unless_they_change_what_enforced_pins_show() {
    for mode in [PinMode::Warn, PinMode::Enforce] {
        let folder = folder();
        let (first, of_first) = opened(folder.path());
        let (second, of_second) = opened(folder.path());
        of_first.set_mode(mode);
        of_second.set_mode(mode);
        shown(&of_first, &[("a", "x"), ("b", "x")]);
        first.settle();
        second.settle();
        announced(&second);
        let before = of_second.generation();
        // Versions that wait, in turns.
        for turn in 0..6 {
            shown(&of_first, &[("a", &format!("y{turn}")), ("b", "x")]);
            first.settle();
            shown(&of_second, &[("a", &format!("z{turn}")), ("b", "x")]);
            second.settle();
        }
        assert_eq!(announced(&second), Vec::<String>::new(), "{mode:?}");
        assert_eq!(of_second.generation(), before, "{mode:?}");
        first.settle();
        let pin = &first.list(Some("git"), Some("a"), |_| true)[0];
        let digest = &pin.pending.last().expect("a version").digest;
        first
            .approve(&name(), Some("a"), Some(digest))
            .expect("written");
        second.settle();
        let is_enforced = mode == PinMode::Enforce;
        for pins in [&first, &second] {
            assert_eq!(announced(pins).len(), usize::from(is_enforced), "{mode:?}");
        }
        assert_eq!(of_second.generation() > before, is_enforced, "{mode:?}");
        first.forget(&name(), None).expect("written");
        second.settle();
        assert_eq!(announced(&second).len(), usize::from(is_enforced));
    }
}

#[test]
fn a_broken_file_is_no_decision_where_pins_only_warn() {
    let folder = folder();
    let (pins, own) = opened(folder.path());
    own.set_mode(PinMode::Warn);
    shown(&own, &[("a", "x")]);
    pins.settle();
    let before = own.generation();
    announced(&pins);
    let file = folder.path().join(PINS_FILE);
    let text = fs::read(&file).expect("a file");
    fs::write(&file, "{").expect("written");
    pins.settle();
    assert!(pins.problem().is_some());
    fs::write(&file, text).expect("written");
    pins.settle();
    assert_eq!(pins.problem(), None);
    assert_eq!(announced(&pins), Vec::<String>::new());
    assert_eq!(own.generation(), before);
}

#[test]
fn a_definition_that_is_forgotten_under_warn_is_recorded_anew_by_the_same_page() {
    let folder = folder();
    let (pins, own) = opened(folder.path());
    own.set_mode(PinMode::Warn);
    shown(&own, &[("a", "x")]);
    shown(&own, &[("a", "y")]);
    pins.forget(&name(), None).expect("written");
    shown(&own, &[("a", "y")]);
    assert_eq!(states(&pins), [("a".to_owned(), PinState::Approved)]);
}

#[test]
fn a_decision_that_cannot_be_written_is_not_in_force() {
    let folder = folder();
    let data = folder.path().join("data");
    fs::create_dir(&data).expect("a folder");
    let (pins, own) = opened(&data);
    shown(&own, &[("a", "x")]);
    shown(&own, &[("a", "y")]);
    pins.settle();
    // A folder stands in place of the lock file, so that writing fails, for root as well.
    fs::remove_file(data.join("pins.lock")).expect("removed");
    fs::create_dir(data.join("pins.lock")).expect("a folder");
    pins.approve(&name(), None, None).expect_err("not written");
    assert!(pins.problem().is_some());
    assert_eq!(shown(&own, &[("a", "y")]), Vec::<String>::new());
    fs::remove_dir(data.join("pins.lock")).expect("removed");
    pins.approve(&name(), None, None).expect("written");
    assert_eq!(pins.problem(), None);
    assert_eq!(shown(&own, &[("a", "y")]), ["a"]);
}

#[test]
fn a_server_that_changes_all_the_time_is_reported_a_bounded_number_of_times() {
    let folder = folder();
    let (pins, own) = opened(folder.path());
    let events = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let told = Arc::clone(&events);
    pins.observe(Box::new(move |_| {
        told.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }));
    own.set_mode(PinMode::Warn);
    for turn in 0..500 {
        shown(&own, &[("a", &turn.to_string())]);
    }
    let told = events.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(
        told,
        usize::try_from(super::VERSIONS_MAX).expect("a number")
    );
    let pin = &pins.list(None, None, |_| true)[0];
    assert!(pin.varying);
    for turn in 0..super::VERSIONS_MAX {
        let about = turn.to_string();
        let names: Vec<_> = (0..10).map(|at| format!("t{at}")).collect();
        let tools: Vec<_> = names.iter().map(|name| (&**name, &*about)).collect();
        shown(&own, &tools);
    }
    let told = events.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(told, usize::try_from(super::EVENTS_MAX).expect("a number"));
    // Under enforce, only approved versions of it are shown.
    own.set_mode(PinMode::Enforce);
    assert_eq!(shown(&own, &[("a", "600")]), Vec::<String>::new());
    assert_eq!(shown(&own, &[("a", "0")]), ["a"]);
    pins.settle();
    let size = fs::metadata(folder.path().join(PINS_FILE))
        .expect("a file")
        .len();
    assert!(size < 32 * 1024, "{size}");
}

#[test]
fn a_server_with_ten_thousand_names_is_recorded_up_to_the_bound() {
    let folder = folder();
    let (pins, own) = opened(folder.path());
    // Names that look alike are found without a search of all others.
    let names: Vec<_> = (0..10_000).map(|at| format!("tool_I{at}")).collect();
    let tools: Vec<_> = names.iter().map(|name| (&**name, "x")).collect();
    assert_eq!(shown(&own, &tools).len(), 2_000);
    own.set_mode(PinMode::Warn);
    assert_eq!(shown(&own, &tools).len(), 10_000);
    assert_eq!(states(&pins).len(), 2_000);
}
