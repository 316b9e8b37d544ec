//! The store on real files, and writers killed at every step.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use tempfile::TempDir;
use tooldock_base::fault::{FOLDER, dying_everywhere};
use tooldock_base::names::NamespaceName;

use super::*;
use crate::secrets::{DeclaredSecret, SecretNames, Status};

fn key(text: &str) -> SecretsKey {
    SecretsKey::quick(text)
}

fn store(folder: &Path) -> SecretStore {
    SecretStore::new(folder, Protection::Key(key("k")))
}

fn slack() -> Scope {
    "slack".parse().unwrap()
}

/// All values of a namespace, as `KEY=value`.
fn seen(store: &SecretStore, namespace: &str) -> Vec<String> {
    let name: NamespaceName = namespace.parse().unwrap();
    let own = store.read().unwrap().for_namespace(&name);
    let values = own.values.iter();
    values
        .map(|(key, value)| format!("{key}={}", value.expose()))
        .collect()
}

/// All secrets, as `KEY scope status`.
fn listed(store: SecretStore) -> Vec<String> {
    let names = SecretNames::of(Arc::new(store)).list(None).unwrap();
    names
        .iter()
        .map(|it| format!("{} {} {:?}", it.key, it.scope, it.status))
        .collect()
}

#[test]
fn a_namespace_gets_global_values_and_its_own_win() {
    let folder = TempDir::new().unwrap();
    let store = store(folder.path());
    assert_eq!(seen(&store, "slack"), [""; 0], "no files, no secrets");
    store
        .set("A", &Scope::Global, Secret::new("global"))
        .unwrap();
    store
        .set("B", &Scope::Global, Secret::new("global"))
        .unwrap();
    store.set("B", &slack(), Secret::new("own")).unwrap();
    assert_eq!(seen(&store, "slack"), ["A=global", "B=own"]);
    assert_eq!(seen(&store, "github"), ["A=global", "B=global"]);
}

#[test]
fn no_value_stands_in_any_file_and_the_modes_are_tight() {
    let folder = TempDir::new().unwrap();
    store(folder.path())
        .set("A", &Scope::Global, Secret::new("canary-0123456789"))
        .unwrap();
    for (name, mode) in [
        ("secrets.enc", 0o600),
        ("secrets.meta.yaml", 0o600),
        ("secrets.lock", 0o600),
    ] {
        let path = folder.path().join(name);
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("canary"), "{name}: {text}");
        assert_eq!(
            path.metadata().unwrap().permissions().mode() & 0o777,
            mode,
            "{name}"
        );
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    // In the form that earlier versions left.
    let files = ["secrets.meta.yaml", "secrets.lock"].map(|name| folder.path().join(name));
    for file in &files {
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
    }
    drop(store(folder.path()).begin("edit").unwrap());
    for file in &files {
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
}

#[test]
fn a_placeholder_is_no_variable_and_becomes_a_secret() {
    let folder = TempDir::new().unwrap();
    let store = Arc::new(store(folder.path()));
    let names = SecretNames::of(Arc::clone(&store));
    let github: NamespaceName = "github".parse().unwrap();
    let declared = ["TOKEN", "OTHER", "TOKEN"].map(|key| DeclaredSecret {
        key: key.to_owned(),
        default: None,
    });
    let check = || {
        let it = names.check(&github, &declared).unwrap();
        [it.satisfied, it.missing, it.placeholders].map(|keys| keys.join(" "))
    };
    assert_eq!(check(), ["", "TOKEN OTHER", ""]);
    assert_eq!(
        names.prepare("TOKEN", &Scope::Global).unwrap(),
        Status::Placeholder
    );
    assert_eq!(check(), ["", "OTHER", "TOKEN"]);
    let own = store.read().unwrap().for_namespace(&github);
    assert!(own.values.is_empty() && own.placeholders.contains("TOKEN"));

    store
        .set("TOKEN", &Scope::Global, Secret::new("v"))
        .unwrap();
    assert_eq!(check(), ["TOKEN", "OTHER", ""]);
    assert_eq!(names.prepare("TOKEN", &Scope::Global).unwrap(), Status::Set);
    assert_eq!(
        seen(&store, "github"),
        ["TOKEN=v"],
        "asking again takes nothing away"
    );
    names.prepare("OTHER", &"github".parse().unwrap()).unwrap();
    let own = names.list(Some(&"github".parse().unwrap())).unwrap();
    assert_eq!(own.len(), 1);
    assert_eq!(
        names.list(None).unwrap()[0].key,
        "TOKEN",
        "global ones come first"
    );

    names.remove("TOKEN", &Scope::Global).unwrap();
    assert_eq!(seen(&store, "github"), [""; 0]);
    let error = names.remove("TOKEN", &Scope::Global).unwrap_err();
    assert!(
        matches!(error, SecretsError::NoSuchSecret { .. }),
        "{error}"
    );
    assert!(names.prepare("no key", &Scope::Global).is_err());
}

#[test]
fn a_store_that_cannot_be_read_is_an_error_that_names_the_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("secrets.enc");
    let store = store(folder.path());
    store.set("A", &Scope::Global, Secret::new("v")).unwrap();
    let good = fs::read(&path).unwrap();
    let told = |protection| {
        let error = SecretStore::new(folder.path(), protection)
            .read()
            .unwrap_err();
        let message = error.to_string();
        assert!(message.contains("secrets.enc"), "{message}");
        message
    };
    assert!(told(Protection::Key(key("other"))).contains("SECRETS_KEY is not the key"));
    assert!(told(Protection::Insecure).contains("SECRETS_KEY is not set"));
    assert!(told(Protection::Unset).contains("SECRETS_KEY is not set"));
    for damaged in [&b""[..], b"\n", &good[..good.len() / 2], b"\0\xff"] {
        fs::write(&path, damaged).unwrap();
        assert!(
            told(Protection::Key(key("k"))).contains("damaged"),
            "{damaged:?}"
        );
        assert!(store.set("B", &Scope::Global, Secret::new("v")).is_err());
        assert_eq!(fs::read(&path).unwrap(), damaged, "nothing is overwritten");
    }
    fs::write(&path, "global: { A: v }").unwrap();
    assert!(told(Protection::Key(key("k"))).contains("is not encrypted"));
    assert!(told(Protection::Unset).contains("ALLOW_INSECURE_SECRETS"));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(told(Protection::Key(key("k"))).contains("cannot read"));
    fs::remove_dir(&path).unwrap();
    fs::write(&path, &good).unwrap();
    fs::write(folder.path().join("secrets.meta.yaml"), "global: [").unwrap();
    let message = store.read().unwrap_err().to_string();
    assert!(
        message.contains("secrets.meta.yaml: is damaged"),
        "{message}"
    );
}

#[test]
fn without_a_key_and_with_permission_the_file_is_plain_yaml_and_rekey_encrypts_it() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("secrets.enc");
    let store = SecretStore::new(folder.path(), Protection::Insecure);
    fs::write(
        &path,
        "global:\n  PORT: 8080\nnamespaces:\n  slack: { T: x }\n",
    )
    .unwrap();
    store.set("A", &Scope::Global, Secret::new("v")).unwrap();
    assert_eq!(seen(&store, "slack"), ["A=v", "PORT=8080", "T=x"]);
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text.starts_with("# Not encrypted") && text.contains("A: v"),
        "{text}"
    );

    store.rekey(key("k")).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text.starts_with("{\"version\":2") && !text.contains("8080"),
        "{text}"
    );
    assert_eq!(
        seen(&self::store(folder.path()), "slack"),
        ["A=v", "PORT=8080", "T=x"]
    );
    assert_eq!(
        seen(&store, "slack").len(),
        3,
        "it goes on with the new key"
    );
}

#[test]
fn without_key_and_permission_nothing_is_stored_and_a_placeholder_can_be_asked_for() {
    let folder = TempDir::new().unwrap();
    let store = SecretStore::new(folder.path(), Protection::Unset);
    let error = store
        .set("A", &Scope::Global, Secret::new("v"))
        .unwrap_err();
    assert!(
        error.to_string().starts_with("SECRETS_KEY is not set"),
        "{error}"
    );
    assert!(!store.has_values());
    let names = SecretNames::of(Arc::new(store));
    names.prepare("A", &Scope::Global).unwrap();
    assert_eq!(names.list(None).unwrap().len(), 1);
    names.remove("A", &Scope::Global).unwrap();
}

#[test]
fn values_that_cannot_be_a_variable_are_refused() {
    let folder = TempDir::new().unwrap();
    let store = store(folder.path());
    for value in ["", "a\0b", &"x".repeat(100_000)] {
        let error = store
            .set("A", &Scope::Global, Secret::new(value))
            .unwrap_err();
        assert!(
            matches!(error, SecretsError::InvalidValue { .. }),
            "{error}"
        );
    }
    let mut values = Values::default();
    for at in 0..12 {
        let large = Secret::new("x".repeat(90 * 1024));
        values.insert(&format!("K{at}"), &Scope::Global, large);
    }
    let error = store.write_own_values(&values, None, None).unwrap_err();
    assert!(matches!(error, SecretsError::TooLarge(_)), "{error}");
    assert!(!store.has_values());
}

#[test]
fn an_edited_document_replaces_everything_or_nothing() {
    let folder = TempDir::new().unwrap();
    let store = store(folder.path());
    store
        .set("A", &Scope::Global, Secret::new("v: \"#"))
        .unwrap();
    store.set("B", &slack(), Secret::new("b")).unwrap();
    store.lock("x").map(drop).unwrap();
    let names = SecretNames::of(Arc::new(self::store(folder.path())));
    names.prepare("C", &"other".parse().unwrap()).unwrap();
    names.prepare("D", &slack()).unwrap();
    let before = listed(self::store(folder.path()));

    let mut transaction = store.begin("edit").unwrap();
    let document = transaction.document().unwrap();
    assert!(
        document.contains("C: null") && document.contains("B: b"),
        "{}",
        *document
    );
    assert!(
        !transaction.replace(document.as_bytes()).unwrap(),
        "unchanged"
    );
    let error = transaction.replace(b"global:\n  A: [x]\n").unwrap_err();
    assert!(error.to_string().starts_with("line 2"), "{error}");
    let error = transaction.replace(b"").unwrap_err().to_string();
    assert!(error.contains("`global:` is missing"), "{error}");
    drop(transaction);
    assert_eq!(listed(self::store(folder.path())), before);

    let mut transaction = store.begin("edit").unwrap();
    assert!(
        transaction
            .replace(b"global: { A: w, E: }\nnamespaces: { slack: { D: d } }")
            .unwrap()
    );
    transaction.commit().unwrap();
    assert_eq!(seen(&store, "slack"), ["A=w", "D=d"]);
    assert_eq!(
        listed(self::store(folder.path())),
        ["A global Set", "E global Placeholder", "D slack Set"]
    );
}

#[test]
fn writers_wait_for_each_other_and_lose_nothing() {
    let folder = TempDir::new().unwrap();
    std::thread::scope(|threads| {
        for at in 0..8 {
            let folder = folder.path();
            threads.spawn(move || {
                let key = format!("K{at}");
                store(folder)
                    .set(&key, &Scope::Global, Secret::new("v"))
                    .unwrap();
            });
        }
    });
    assert_eq!(seen(&store(folder.path()), "any").len(), 8);
}

#[test]
fn a_long_edit_is_named_to_who_waits_in_vain() {
    let folder = TempDir::new().unwrap();
    let store = SecretStore {
        patience: Duration::ZERO,
        ..store(folder.path())
    };
    let edit = store.begin("secrets edit").unwrap();
    let error = store
        .set("A", &Scope::Global, Secret::new("v"))
        .unwrap_err();
    assert!(
        error.to_string().contains("held by secrets edit (process"),
        "{error}"
    );
    drop(edit);
    store.set("A", &Scope::Global, Secret::new("v")).unwrap();
}

/// Variable with the operation of a child process on the store before it is killed.
const OPERATION: &str = "TOOLDOCK_TEST_OPERATION";

fn operate(store: &SecretStore, operation: &str) -> Result<(), SecretsError> {
    match operation {
        "set" => store.set("NEW", &slack(), Secret::new("new")),
        "change" => store.set("OLD", &Scope::Global, Secret::new("new")),
        "remove" => store.remove("OLD", &Scope::Global),
        "rekey" => store.rekey(key("new")),
        "prepare" => {
            let names = SecretNames::of(Arc::new(self::store(&store.directory)));
            names.prepare("ASKED", &slack()).map(drop)
        }
        "edit" => {
            let mut transaction = store.begin("edit")?;
            transaction.replace(b"global: { NEW: new }\nnamespaces: {}")?;
            transaction.commit()
        }
        other => panic!("{other}"),
    }
}

/// Run by [`a_writer_that_is_killed_anywhere_leaves_the_old_or_the_new_secrets`] in a separate process.
#[test]
#[ignore = "dies"]
fn a_writer_that_is_killed() {
    let folder = std::env::var(FOLDER).unwrap();
    operate(&store(folder.as_ref()), &std::env::var(OPERATION).unwrap()).unwrap();
}

fn whole(folder: &Path) -> Vec<String> {
    // After a rekey only one of the two keys opens the file.
    let read = |key: SecretsKey| {
        let store = SecretStore::new(folder, Protection::Key(key));
        let secrets = store.read().ok()?;
        let mut all = listed(store);
        for name in ["slack", "other"] {
            let own = secrets.for_namespace(&name.parse().unwrap()).values;
            all.extend(
                own.iter()
                    .map(|(key, value)| format!("{name} {key}={}", value.expose())),
            );
        }
        Some(all)
    };
    read(key("k"))
        .or_else(|| read(key("new")))
        .expect("one of the keys opens it")
}

#[test]
fn a_writer_that_is_killed_anywhere_leaves_the_old_or_the_new_secrets() {
    for operation in ["set", "change", "remove", "rekey", "prepare", "edit"] {
        let prepared = || {
            let folder = TempDir::new().unwrap();
            let store = store(folder.path());
            store
                .set("OLD", &Scope::Global, Secret::new("old"))
                .unwrap();
            store.set("KEPT", &slack(), Secret::new("kept")).unwrap();
            folder
        };
        let (before, after) = {
            let folder = prepared();
            let before = whole(folder.path());
            operate(&store(folder.path()), operation).unwrap();
            (before, whole(folder.path()))
        };
        let test = "secrets::store::tests::a_writer_that_is_killed";
        let died = dying_everywhere(test, &[(OPERATION, operation)], prepared, |at, folder| {
            let left = whole(folder);
            assert!(
                left == before || left == after,
                "{operation} {at}: {left:?}"
            );
            // The next writer finds no lock, repairs the store and removes the leftovers.
            let next = SecretStore::new(folder, Protection::Key(key("k")));
            if next.read().is_ok() {
                next.set("NEXT", &Scope::Global, Secret::new("v")).unwrap();
                let files = fs::read_dir(folder).unwrap().count();
                assert_eq!(files, 3, "{operation} {at}");
            }
            if at == 0 {
                assert_eq!(left, after, "{operation}");
            }
        });
        assert!(died >= 5, "{operation} was killed at {died} places");
    }
}
