//! Wrong credentials that come often: from where they are slowed, and whom that never stops.

use super::*;
use crate::rejection::Rejection;

const SLOWED: &str =
    "{ trusted_proxies: [10.0.0.0/8], failures: { free: 3, window: 1m, max_delay: 4s } }";

const WRONG: &str = "Bearer wrong";

fn from(peer: &'static str, authorization: &'static str) -> Case {
    Case {
        peer,
        ..good().with("authorization", authorization)
    }
}

/// The status of a refusal, and the seconds of its `Retry-After`.
fn answer(rejection: &Rejection) -> (u16, Option<u64>) {
    let mut headers = rejection.headers.iter();
    let retry = headers.find(|(name, _)| *name == RETRY_AFTER);
    let seconds = retry.map(|(_, value)| value.to_str().unwrap().parse().unwrap());
    (rejection.status().as_u16(), seconds)
}

#[test]
fn wrong_tokens_of_an_address_are_slowed_with_growing_delays_and_right_ones_never() {
    let (clock, admission) = admission(SLOWED);
    let wrong = || answer(&from("192.0.2.1", WRONG).refused(&admission));
    assert_eq!([wrong(), wrong(), wrong()], [(401, None); 3]);
    for delay in [1, 2, 4, 4] {
        assert_eq!([wrong(), wrong()], [(429, Some(delay)); 2]);
        from("192.0.2.1", "Bearer change_me").admitted(&admission);
        // Without credentials there is nothing to guess.
        let none = from("192.0.2.1", WRONG).without("authorization");
        assert_eq!(answer(&none.refused(&admission)), (401, None));
        assert_eq!(
            answer(&from("192.0.2.2", "Basic eA==").refused(&admission)).0,
            401
        );
        clock.advance(Duration::from_secs(delay));
        assert_eq!(wrong(), (401, None));
    }
    clock.advance(Duration::from_secs(64));
    assert_eq!([wrong(), wrong(), wrong()], [(401, None); 3]);
}

#[test]
fn the_spell_is_told_once_and_each_failure_is_told_with_its_sender() {
    let (_, admission) = admission(SLOWED);
    let told = |_: u32| {
        from("192.0.2.1", WRONG)
            .refused(&admission)
            .failure
            .unwrap()
    };
    let told: Vec<_> = (0..6).map(told).collect();
    let began: Vec<_> = told.iter().map(|it| it.spell_began).collect();
    assert_eq!(began, [false, false, true, false, false, false]);
    let delayed: Vec<_> = told.iter().map(|it| it.delayed).collect();
    assert_eq!(delayed, [false, false, false, true, true, true]);
    let client: IpAddr = "192.0.2.1".parse().unwrap();
    assert!(told.iter().all(|it| it.client == client));
    let (_, off) = self::admission("failures: off");
    let refused = (0..100).map(|_| from("192.0.2.1", WRONG).refused(&off));
    assert!(
        refused
            .into_iter()
            .all(|it| answer(&it) == (401, None) && it.failure.is_none())
    );
}

#[test]
fn the_client_behind_trusted_proxies_is_slowed_whatever_it_claims_to_be() {
    let (_, admission) = admission(SLOWED);
    let forged = [
        "198.51.100.1, 192.0.2.7",
        "198.51.100.2, 192.0.2.7",
        "unknown, 192.0.2.7",
        "192.0.2.7, 10.0.0.3",
    ];
    let status = |forwarded: &'static str| {
        let case = from("10.0.0.2", WRONG).with("x-forwarded-for", forwarded);
        answer(&case.refused(&admission)).0
    };
    assert_eq!(forged.map(status), [401, 401, 401, 429]);
    assert_eq!(status("192.0.2.7, 192.0.2.8"), 401, "another client");
    // An IPv6 client has a network to choose addresses from, and an IPv4 address has two spellings.
    let network = [
        "2001:db8::1",
        "2001:db8::2",
        "[2001:db8:0:0:ffff::3]:80",
        "2001:db8::4",
    ];
    assert_eq!(network.map(status), [401, 401, 401, 429]);
    assert_eq!(status("::ffff:192.0.2.7"), 429);
    // Without a trusted proxy the header does not count.
    let spoofed = |forwarded| {
        let case = from("192.0.2.9", WRONG).with("x-forwarded-for", forwarded);
        answer(&case.refused(&admission)).0
    };
    assert_eq!(forged.map(spoofed), [401, 401, 401, 429]);
}

/// On a listener that takes passwords of browsers.
fn browser(peer: &'static str, password: &'static str) -> Case {
    let page = get("/tools", &[("authorization", password)]);
    Case {
        peer,
        listener: ListenerRules {
            routes: route::ALL,
            basic: Some("admin".into()),
            ..CORE
        },
        ..page
    }
}

/// `admin:wrong`, `admin:change_me` and `eve:wrong`.
const ADMIN_WRONG: &str = "Basic YWRtaW46d3Jvbmc=";
const ADMIN_RIGHT: &str = "Basic YWRtaW46Y2hhbmdlX21l";
const EVE_WRONG: &str = "Basic ZXZlOndyb25n";

#[test]
fn wrong_passwords_of_a_user_are_slowed_from_all_addresses_and_the_right_one_never() {
    let (_, admission) = admission(SLOWED);
    let addresses = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"];
    let status = |peer| answer(&browser(peer, ADMIN_WRONG).refused(&admission)).0;
    assert_eq!(addresses.map(status), [401, 401, 401, 429]);
    let eve = browser("192.0.2.4", EVE_WRONG).refused(&admission);
    assert_eq!(answer(&eve).0, 401, "another user");
    let right = browser("192.0.2.4", ADMIN_RIGHT).send(&admission);
    assert!(!matches!(&right, Verdict::Refused(it) if matches!(it.status().as_u16(), 401 | 429)));
    // Else the browser would go on to send the wrong password.
    let navigation = browser("192.0.2.4", ADMIN_WRONG).with("sec-fetch-mode", "navigate");
    let asked = navigation.refused(&admission);
    assert_eq!(answer(&asked), (401, Some(1)));
    let challenge = asked
        .headers
        .iter()
        .find(|(name, _)| name == "www-authenticate");
    assert!(challenge.is_some_and(|(_, it)| it.to_str().unwrap().starts_with("Basic")));
}

#[test]
fn wrong_tokens_of_the_manager_and_at_health_checks_are_failures_too() {
    let (_, admission) = admission(SLOWED);
    for _ in 0..3 {
        let probe = get("/health", &[("authorization", WRONG)]).admitted(&admission);
        assert!(probe.failure.is_some_and(|it| !it.delayed) && probe.principal.is_none());
    }
    let probe = get("/health", &[("authorization", WRONG)]).admitted(&admission);
    assert!(probe.failure.is_some_and(|it| it.delayed));
    assert_eq!(answer(&from("192.0.2.1", WRONG).refused(&admission)).0, 429);
    let probe = get("/health", &[("authorization", "Bearer change_me")]).admitted(&admission);
    assert!(probe.principal.is_some() && probe.failure.is_none());
}
