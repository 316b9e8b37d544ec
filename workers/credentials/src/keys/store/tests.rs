use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt as _;

use tooldock_base::key_maker::{EntryHash, EntryName, MakerCredential};

use super::*;
use crate::keys::{ChangeSocket, KeyKind, KeyRefusal, KeyState};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn wanted(name: &str) -> NewKey {
    NewKey {
        name: name.into(),
        made_by: None,
        scopes: vec!["read".into()],
        namespaces: vec!["dev-*".into()],
        networks: Vec::new(),
        limits: vec!["5/10:tool_call".parse().unwrap()],
        lifetime: None,
        kind: KeyKind::Gateway,
    }
}

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("data/keys.json")
    }

    /// Opens the store as a process that starts now.
    fn open(&self) -> KeyStore {
        KeyStore::open(self.file(), ScopeTable::default()).unwrap()
    }
}

fn verify(store: &KeyStore, key: &MadeKey) -> Result<String, KeyRefusal> {
    verify_from(store, key, HERE, SystemTime::now())
}

fn verify_from(
    store: &KeyStore,
    key: &MadeKey,
    client: IpAddr,
    now: SystemTime,
) -> Result<String, KeyRefusal> {
    let table = store.tables.load();
    let found = table.verify(key.text.expose().as_bytes(), client, now)?;
    Ok(found.principal().to_string())
}

#[test]
fn a_key_counts_from_its_making_to_its_end() {
    let place = Place::new();
    let store = place.open();
    let key = store.create(wanted("ci")).unwrap();
    assert_eq!(verify(&store, &key).as_deref(), Ok("key:ci"));
    let table = store.tables.load();
    let found = table.get(key.record.id).unwrap();
    assert!(found.namespaces().opens(&"dev-1".parse().unwrap()));
    assert!(found.grant().tools.allows("project_list"));
    assert!(!found.grant().tools.allows("project_create"));
    assert_eq!(
        found.grant().key_id().map(|id| &**id),
        Some(key.record.id.as_str())
    );
    assert_eq!(found.limits().len(), 1);
    drop(table);
    let losses = store.losses();
    assert_eq!(
        store
            .revoke(key.record.id)
            .unwrap()
            .state(SystemTime::now()),
        KeyState::Revoked
    );
    assert_eq!(verify(&store, &key), Err(KeyRefusal::Revoked));
    assert!(losses.has_changed().unwrap());
    // The second time nothing changes, and an unknown key is reported.
    let first = store.list().unwrap()[0].revoked;
    assert_eq!(store.revoke(key.record.id).unwrap().revoked, first);
    let other = text::new_id().unwrap();
    assert!(matches!(store.revoke(other), Err(KeysError::NoSuchKey(id)) if id == other));
}

#[test]
fn networks_and_time_are_judged_at_each_request() {
    let place = Place::new();
    let store = place.open();
    let key = NewKey {
        networks: vec!["10.0.0.0/8".parse().unwrap()],
        lifetime: Some(Duration::from_secs(3600)),
        ..wanted("ci")
    };
    let key = store.create(key).unwrap();
    let inside: IpAddr = "10.1.2.3".parse().unwrap();
    let now = SystemTime::now();
    let at = |client, seconds| {
        verify_from(&store, &key, client, now + Duration::from_secs(seconds)).err()
    };
    assert_eq!(at(inside, 0), None);
    assert_eq!(at("::ffff:10.1.2.3".parse().unwrap(), 3000), None);
    assert_eq!(at(HERE, 0), Some(KeyRefusal::Network));
    assert_eq!(at(inside, 3601), Some(KeyRefusal::Expired));
}

#[test]
fn what_is_almost_a_key_is_none() {
    let place = Place::new();
    let store = place.open();
    let key = store.create(wanted("ci")).unwrap();
    let other = store.create(wanted("ci")).unwrap();
    let table = store.tables.load();
    let refused = |text: &[u8]| table.verify(text, HERE, SystemTime::now()).err();
    let text = key.text.expose().as_bytes();
    assert_eq!(
        refused(&text[..text.len() - 1]),
        Some(KeyRefusal::Malformed)
    );
    // A correct checksum around another key's id, or around an unknown id.
    for (id, refusal) in [
        (other.record.id, KeyRefusal::WrongSecret),
        (text::new_id().unwrap(), KeyRefusal::Unknown),
    ] {
        let forged = text::generate(KeyKind::Relay, id).unwrap();
        assert_eq!(refused(forged.expose().as_bytes()), Some(refusal));
    }
}

#[test]
fn another_processs_changes_are_read() {
    let place = Place::new();
    let (one, other) = (place.open(), place.open());
    let key = one.create(wanted("ci")).unwrap();
    assert_eq!(verify(&other, &key), Err(KeyRefusal::Unknown));
    other.refresh();
    assert!(verify(&other, &key).is_ok());
    let losses = other.losses();
    // Another key takes nothing away from existing ones.
    one.create(wanted("more")).unwrap();
    other.refresh();
    assert!(!losses.has_changed().unwrap());
    one.revoke(key.record.id).unwrap();
    other.refresh();
    assert_eq!(verify(&other, &key), Err(KeyRefusal::Revoked));
    assert!(losses.has_changed().unwrap());
}

#[test]
fn a_damaged_file_leaves_the_keys_of_before_in_force_and_stops_a_start() {
    let place = Place::new();
    let store = place.open();
    let key = store.create(wanted("ci")).unwrap();
    let whole = fs::read(place.file()).unwrap();
    for damaged in [
        whole[..whole.len() / 2].to_vec(),
        b"".to_vec(),
        b"[]".to_vec(),
        String::from_utf8(whole.clone())
            .unwrap()
            .replace("dev-*", "[")
            .into_bytes(),
        String::from_utf8(whole.clone())
            .unwrap()
            .replace("\"ci\"", "\"../ci\"")
            .into_bytes(),
        String::from_utf8(whole.clone())
            .unwrap()
            .replace("\"name\"", "\"nome\"")
            .into_bytes(),
    ] {
        fs::write(place.file(), &damaged).unwrap();
        store.refresh();
        assert!(verify(&store, &key).is_ok());
        assert!(matches!(
            store.create(wanted("more")),
            Err(KeysError::Damaged { .. })
        ));
        assert_eq!(
            fs::read(place.file()).unwrap(),
            damaged,
            "nothing was written"
        );
        let error = KeyStore::open(place.file(), ScopeTable::default()).unwrap_err();
        let told = error.to_string();
        assert!(
            told.contains("keys.json: is damaged: ") && !told.contains('\n'),
            "{told}"
        );
    }
    fs::write(place.file(), r#"{"version": 2, "keys": [], "more": 1}"#).unwrap();
    let error = KeyStore::open(place.file(), ScopeTable::default()).unwrap_err();
    assert!(error.to_string().contains("format version 2"), "{error}");
    // A file that is intact again, and a file that is gone.
    fs::write(place.file(), &whole).unwrap();
    store.refresh();
    assert!(verify(&store, &key).is_ok());
    fs::remove_file(place.file()).unwrap();
    store.refresh();
    assert_eq!(verify(&store, &key), Err(KeyRefusal::Unknown));
}

#[test]
fn a_file_that_was_never_there_is_not_gone_and_changes_nothing() {
    let place = Place::new();
    let store = place.open();
    let mut changes = store.changes();
    for _ in 0..2 {
        store.reread();
        store.refresh();
        assert!(!changes.has_changed().unwrap());
    }
    let key = store.create(wanted("ci")).unwrap();
    changes.mark_unchanged();
    fs::remove_file(place.file()).unwrap();
    store.reread();
    assert!(changes.has_changed().unwrap());
    assert_eq!(verify(&store, &key), Err(KeyRefusal::Unknown));
}

#[test]
fn the_file_is_its_owners_alone_and_has_no_key() {
    let place = Place::new();
    let store = place.open();
    let key = store.create(wanted("ci")).unwrap();
    let mode = fs::metadata(place.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = key.text.expose();
    let secret = &text[text.len() - 46..];
    let shown = format!("{key:?} {store:?} {:?}", store.list().unwrap());
    for place in fs::read_dir(place.file().parent().unwrap()).unwrap() {
        let stored = fs::read_to_string(place.unwrap().path()).unwrap();
        assert!(!stored.contains(secret) && !stored.contains(&secret[..40]));
    }
    assert!(
        !shown.contains(secret) && !shown.contains(&secret[..40]),
        "{shown}"
    );
    let hash = tooldock_base::data_dir::hex(&key.record.hash.0);
    assert!(!shown.contains(&hash), "{shown}");
}

#[test]
fn scopes_that_are_not_there_are_refused_and_those_that_leave_open_nothing() {
    let place = Place::new();
    let store = place.open();
    let unknown = NewKey {
        scopes: vec!["read".into(), "ci".into()],
        ..wanted("ci")
    };
    let refused = store.create(unknown.clone()).unwrap_err().to_string();
    assert!(
        refused.contains("\"ci\"") && refused.contains("admin, read, write"),
        "{refused}"
    );
    let ci = [("ci".to_owned(), vec!["deploy".to_owned()])];
    store.set_scopes(ScopeTable::new(&ci.into()).unwrap());
    let key = store.create(unknown).unwrap();
    let allows = |tool| {
        let table = store.tables.snapshot();
        let grant = table.get(key.record.id).unwrap().grant();
        grant.tools.allows(tool)
    };
    assert!(allows("deploy") && allows("project_list"));
    let losses = store.losses();
    store.set_scopes(ScopeTable::default());
    assert!(!allows("deploy") && allows("project_list"));
    assert!(losses.has_changed().unwrap());
    assert!(verify(&store, &key).is_ok());
}

#[test]
fn last_uses_are_written_together_and_take_nothing_else_along() {
    let place = Place::new();
    let (one, other) = (place.open(), place.open());
    let keys = [
        one.create(wanted("a")).unwrap(),
        one.create(wanted("b")).unwrap(),
    ];
    other.refresh();
    for key in &keys {
        assert!(verify(&other, key).is_ok());
    }
    // Meanwhile another process changes the file.
    one.revoke(keys[0].record.id).unwrap();
    let losses = other.losses();
    other.write_uses();
    let listed = place.open().list().unwrap();
    assert!(listed.iter().all(|record| record.last_used.is_some()));
    assert_eq!(
        listed
            .iter()
            .filter(|record| record.revoked.is_some())
            .count(),
        1
    );
    assert_eq!(verify(&other, &keys[0]), Err(KeyRefusal::Revoked));
    assert!(losses.has_changed().unwrap());
    // A second use soon after does not cause another write.
    let stamp = Stamp::of(&place.file());
    assert!(verify(&other, &keys[1]).is_ok());
    other.write_uses();
    assert_eq!(Stamp::of(&place.file()), stamp);
}

#[test]
fn two_writers_lose_nothing() {
    let place = Place::new();
    let stores = [place.open(), place.open(), place.open()];
    std::thread::scope(|scope| {
        for store in &stores {
            scope.spawn(|| {
                for _ in 0..5 {
                    store.create(wanted("ci")).unwrap();
                }
            });
        }
    });
    assert_eq!(place.open().list().unwrap().len(), 15);
}

/// A store set up as in a running gateway: the socket is bound before the file is read.
fn serving(place: &Place) -> Arc<KeyStore> {
    let socket = ChangeSocket::bind(&place.file()).unwrap();
    let store = Arc::new(place.open());
    tokio::spawn(Arc::clone(&store).follow(Some(socket)));
    store
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_counts_in_all_gateways_when_it_returns_whoever_else_writes() {
    let place = Place::new();
    let gateways = [serving(&place), serving(&place)];
    let place = Arc::new(place);
    let writers = (0..8).map(|at| {
        let (place, gateways) = (Arc::clone(&place), gateways.clone());
        tokio::task::spawn_blocking(move || {
            // The first writer is a gateway, the others stand for other processes.
            let writer = match at {
                0 => Arc::clone(&gateways[0]),
                _ => Arc::new(place.open()),
            };
            for _ in 0..3 {
                let key = writer.create(wanted("ci")).unwrap();
                assert_eq!(writer.gateways_behind(), 0);
                for gateway in &gateways {
                    assert!(verify(gateway, &key).is_ok());
                }
                writer.revoke(key.record.id).unwrap();
                for gateway in &gateways {
                    assert_eq!(verify(gateway, &key), Err(KeyRefusal::Revoked));
                }
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_key_has_the_file_looked_at_once_more() {
    let place = Place::new();
    let store = Arc::new(place.open());
    let made = place.open().create(wanted("ci")).unwrap();
    let text = made.text.expose().as_bytes();
    let judged = || store.tables().verify(text, HERE, SystemTime::now());
    assert_eq!(
        judged().err(),
        Some(KeyRefusal::Unknown),
        "nothing follows the file"
    );
    store.tables().look_into(&store);
    assert!(judged().is_ok());
    // A second unknown key right after the first does not have the file checked again.
    let later = place.open().create(wanted("later")).unwrap();
    let later = later.text.expose().as_bytes();
    let known = || {
        store
            .tables()
            .verify(later, HERE, SystemTime::now())
            .is_ok()
    };
    while !known() {
        tokio::task::yield_now().await;
    }
}

/// Name of the ignored test that a child process runs until it is killed.
const NAME: &str = "keys::store::tests::revokes_where_it_is_told";

#[test]
#[ignore = "run by `a_crash_leaves_the_old_keys_or_the_new_ones`"]
fn revokes_where_it_is_told() {
    let file =
        PathBuf::from(std::env::var_os(tooldock_base::fault::FOLDER).unwrap()).join("keys.json");
    let store = KeyStore::open(file, ScopeTable::default()).unwrap();
    let id = store.list().unwrap()[0].id;
    store.revoke(id).unwrap();
}

#[test]
fn a_crash_leaves_the_old_keys_or_the_new_ones() {
    let open = |folder: &Path| KeyStore::open(folder.join("keys.json"), ScopeTable::default());
    let prepare = || {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path()).unwrap().create(wanted("ci")).unwrap();
        folder
    };
    let points = tooldock_base::fault::dying_everywhere(NAME, &[], prepare, |at, folder| {
        let store = open(folder).unwrap();
        let listed = store.list().unwrap();
        assert_eq!(listed.len(), 1);
        if at == 0 {
            assert!(listed[0].revoked.is_some());
        }
        // The leftovers of the dead writer do not block the next one, which removes them.
        store.create(wanted("next")).unwrap();
        assert_eq!(fs::read_dir(folder).unwrap().count(), 2);
    });
    assert!(points > 3, "{points}");
}

fn maker(name: &str) -> NewKey {
    NewKey {
        scopes: vec!["admin".into()],
        namespaces: vec!["dev-*".into()],
        limits: Vec::new(),
        ..wanted(name)
    }
}

#[test]
fn keys_end_with_the_key_that_made_them_in_all_generations() {
    let place = Place::new();
    let store = place.open();
    let other = place.open();
    let boss = store.create(maker("boss")).unwrap();
    let child = store.create_by(boss.record.id, maker("child")).unwrap();
    let grandchild = store.create_by(child.record.id, wanted("leaf")).unwrap();
    // Keys of equal names have equal principals, and independent ends.
    let twin = store.create_by(boss.record.id, maker("boss")).unwrap();
    let stranger = store.create(maker("boss")).unwrap();
    assert_eq!(verify(&store, &grandchild).unwrap(), "key:boss/child/leaf");
    assert_eq!(verify(&store, &twin).unwrap(), "key:boss");
    assert_eq!(child.record.maker, Some(boss.record.id));
    let losses = store.losses();
    let revoked = store.revoke(boss.record.id).unwrap();
    assert!(losses.has_changed().unwrap());
    other.refresh();
    for key in [&boss, &child, &grandchild, &twin] {
        assert_eq!(verify(&store, key), Err(KeyRefusal::Revoked));
        assert_eq!(verify(&other, key), Err(KeyRefusal::Revoked));
        assert_eq!(verify(&place.open(), key), Err(KeyRefusal::Revoked));
    }
    let listed = store.list().unwrap();
    let of = |key: &MadeKey| listed.iter().find(|it| it.id == key.record.id).unwrap();
    assert_eq!(of(&grandchild).revoked, revoked.revoked);
    assert_eq!(
        of(&grandchild).shown_maker(),
        Some(child.record.id.to_string())
    );
    assert!(verify(&store, &stranger).is_ok());
    assert!(store.create_by(child.record.id, wanted("late")).is_err());
}

#[test]
fn a_key_whose_maker_is_gone_from_the_file_counts_no_more() {
    let place = Place::new();
    let store = place.open();
    let boss = store.create(maker("boss")).unwrap();
    let child = store.create_by(boss.record.id, wanted("child")).unwrap();
    let text = fs::read_to_string(place.file()).unwrap();
    let mut file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let keys = file["keys"].as_array_mut().unwrap();
    keys.retain(|key| key["name"] != "boss");
    fs::write(place.file(), file.to_string()).unwrap();
    store.refresh();
    assert_eq!(verify(&store, &child), Err(KeyRefusal::Revoked));
    assert_eq!(verify(&place.open(), &child), Err(KeyRefusal::Revoked));
}

#[test]
fn a_key_makes_no_key_that_ends_later_or_opens_more_than_itself() {
    let place = Place::new();
    let store = place.open();
    let day = Duration::from_secs(24 * 3600);
    let boss = NewKey {
        lifetime: Some(day),
        networks: vec!["127.0.0.0/8".parse().unwrap()],
        ..maker("boss")
    };
    let boss = store.create(boss).unwrap().record;
    for lifetime in [None, Some(2 * day)] {
        let asked = NewKey {
            lifetime,
            ..wanted("child")
        };
        let child = store.create_by(boss.id, asked).unwrap().record;
        assert_eq!(child.expires, boss.expires);
        assert_eq!(child.networks, boss.networks);
    }
    let short = NewKey {
        lifetime: Some(day / 2),
        networks: vec!["127.0.0.1".parse().unwrap()],
        ..wanted("short")
    };
    let short = store.create_by(boss.id, short).unwrap().record;
    assert!(short.expires < boss.expires);
    let refused = |maker: &KeyRecord, change: fn(&mut NewKey)| {
        let mut asked = wanted("child");
        change(&mut asked);
        let refused = store.create_by(maker.id, asked);
        refused.expect_err("refused").to_string()
    };
    let wide = refused(&boss, |key| key.namespaces = vec!["*".into()]);
    assert!(wide.contains("namespaces: "), "{wide}");
    let system = refused(&boss, |key| key.namespaces = vec!["_system".into()]);
    assert!(system.contains("namespaces: "), "{system}");
    let far = refused(&boss, |key| {
        key.networks = vec!["10.0.0.0/8".parse().unwrap()]
    });
    assert!(far.contains("networks: "), "{far}");
    let unix = refused(&boss, |key| key.networks = vec!["unix".parse().unwrap()]);
    assert!(unix.contains("networks: "), "{unix}");
    let reader = store.create(NewKey {
        limits: Vec::new(),
        ..wanted("reader")
    });
    let reader = reader.unwrap().record;
    let more = refused(&reader, |key| key.scopes = vec!["admin".into()]);
    assert!(more.contains("scopes: "), "{more}");
    let limited = store.create(wanted("limited")).unwrap().record;
    assert!(refused(&limited, |_| {}).contains("limits"));
}

#[test]
fn generations_of_keys_are_bounded() {
    let place = Place::new();
    let store = place.open();
    let mut last = store.create(maker("a")).unwrap().record.id;
    let made = (0..100).take_while(|_| match store.create_by(last, maker("a")) {
        Ok(made) => {
            last = made.record.id;
            true
        }
        Err(error) => {
            assert!(error.to_string().contains("so deep"), "{error}");
            false
        }
    });
    assert_eq!(made.count(), 16);
}

#[test]
fn a_file_from_before_makers_were_kept_loads() {
    let place = Place::new();
    let key = place.open().create(maker("boss")).unwrap();
    let text = fs::read_to_string(place.file()).unwrap();
    assert!(!text.contains("maker"), "{text}");
    let old = text.replacen("\"scopes\"", "\"made_by\": \"droid\", \"scopes\"", 1);
    fs::write(place.file(), old).unwrap();
    let store = place.open();
    assert_eq!(verify(&store, &key).unwrap(), "key:droid/boss");
    let listed = store.list().unwrap();
    assert_eq!(listed[0].shown_maker().as_deref(), Some("key:droid"));
}

/// The entry `ops` of the configuration, by one of its tokens.
fn entry(token: &str, namespaces: &[&str]) -> (MakerCredential, KeyMakers) {
    let fingerprint = EntryHash::of([token.as_bytes()]);
    let namespaces: Arc<[String]> = namespaces.iter().map(|&it| it.to_owned()).collect();
    let mut makers = KeyMakers::default();
    makers.add(
        EntryName::token("ops"),
        fingerprint,
        Some(Arc::clone(&namespaces)),
    );
    let credential = MakerCredential {
        entry: EntryName::token("ops"),
        principal: "ops".into(),
        fingerprint,
        namespaces,
        ends: None,
    };
    (credential, makers)
}

fn by(credential: MakerCredential) -> KeyMaker {
    KeyMaker::Credential(Arc::new(credential))
}

#[test]
fn keys_of_an_entry_of_the_configuration_end_with_the_entry_and_open_no_more() {
    let place = Place::new();
    let store = place.open();
    let own = &["_system", "dev-*"][..];
    let (ops, makers) = entry("one", own);
    let ops = by(ops);
    store.set_makers(makers);
    for wide in [&["*"][..], &["dev-*", "prod"], &["*", "_system"]] {
        let asked = NewKey {
            namespaces: wide.iter().map(|&it| it.to_owned()).collect(),
            ..wanted("ci")
        };
        let refused = store.create_for(&ops, asked).unwrap_err().to_string();
        assert!(refused.contains("_system, dev-* alone"), "{refused}");
    }
    let key = store.create_for(&ops, maker("ci")).unwrap();
    assert_eq!(verify(&store, &key).unwrap(), "key:token:ops/ci");
    assert_eq!(key.record.shown_maker().as_deref(), Some("ops"));
    let child = store.create_by(key.record.id, wanted("leaf")).unwrap();
    assert_eq!(verify(&store, &child).unwrap(), "key:token:ops/ci/leaf");
    let stranger = store.create(maker("ci")).unwrap();
    assert_eq!(verify(&store, &stranger).unwrap(), "key:ci");

    let losses = store.losses();
    for (makers, counts) in [
        (entry("two", own).1, false),
        (entry("one", own).1, true),
        (entry("one", &["_system"]).1, false),
        (entry("one", &["*"]).1, true),
        (KeyMakers::default(), false),
    ] {
        store.set_makers(makers);
        store.set_scopes(ScopeTable::default());
        for key in [&key, &child] {
            assert_eq!(verify(&store, key).is_ok(), counts);
        }
        assert!(verify(&store, &stranger).is_ok());
    }
    assert!(losses.has_changed().unwrap());
    let listed = store.list().unwrap();
    let states = listed.iter().map(|it| it.state(SystemTime::now()));
    assert_eq!(states.filter(|it| *it == KeyState::Revoked).count(), 2);
    assert!(store.create_by(key.record.id, wanted("late")).is_err());
    // A process without a configuration admits none of these keys, and keeps them all.
    let other = place.open();
    assert_eq!(verify(&other, &key), Err(KeyRefusal::Revoked));
    other.create(wanted("next")).unwrap();
    store.refresh();
    store.set_makers(entry("one", own).1);
    assert!(verify(&store, &key).is_ok() && verify(&store, &child).is_ok());
}

#[test]
fn a_key_of_an_access_token_ends_with_the_token_and_no_subject_names_anothers_key() {
    let place = Place::new();
    let store = place.open();
    let now = whole_seconds(SystemTime::now());
    let hour = Duration::from_secs(3600);
    let token = |subject: &str| {
        by(MakerCredential {
            entry: EntryName::issuer("https://idp/a"),
            principal: format!("oauth:https://idp/a#{subject}").into(),
            ends: Some(now + hour + Duration::from_millis(500)),
            ..entry("one", &["dev-*"]).0
        })
    };
    for lifetime in [None, Some(2 * hour)] {
        let asked = NewKey {
            lifetime,
            ..wanted("ci")
        };
        let key = store.create_for(&token("ada"), asked).unwrap().record;
        let expires = key.expires.unwrap();
        assert!(expires <= now + hour && expires > now, "{expires:?}");
        assert_eq!(key.principal(), "key:oauth:https://idp/a#ada/ci");
        assert_eq!(
            key.shown_maker().as_deref(),
            Some("oauth:https://idp/a#ada")
        );
    }
    let slash = store.create_for(&token("ada/ci"), wanted("x")).unwrap();
    assert_eq!(
        slash.record.principal(),
        "key:oauth:https://idp/a#ada%2Fci/x"
    );
    let barred = store.create_for(&KeyMaker::default(), wanted("ci"));
    assert!(
        barred
            .unwrap_err()
            .to_string()
            .contains("makes no API keys")
    );
}
