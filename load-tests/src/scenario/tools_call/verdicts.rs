//! What was found, against the budgets.

use super::case::{Case, Client, Server, Text};
use super::found::{Found, Loaded, Row};
use super::front::{GATEWAY, NGINX};
use crate::processes::Memory;
use crate::report::budget::{self, Verdict};
use crate::servers::echo::Era;

const STDIO: Case = Case::new(Server::Stdio(Era::Legacy), Client::Session);
/// What `--peer` has to call it. It comes with no package index.
const AGENTGATEWAY: &str = "agentgateway";
const APP: Case = Case::new(Server::App, Client::Sessionless);

/// The gateway is judged by its default layout.
pub(super) fn all(found: &Found) -> Vec<Verdict> {
    let of = |server, client| found.row(GATEWAY, Case::new(server, client));
    let ratio = |server, client| of(server, client)?.ratio();
    let worker = |server| of(server, Client::Session)?.server_cpu_us();
    let alone = |server| found.row_alone(GATEWAY, server);
    // The same bytes through nginx.
    let to_nginx = |text: Text, with_servers: bool| {
        let nginx: &Row<Loaded> = found.row(NGINX, APP.with(text))?;
        found
            .row(GATEWAY, STDIO.with(text))?
            .ratio_to(nginx, with_servers)
    };
    let rate = || {
        let others = found.row(AGENTGATEWAY, STDIO)?;
        found.row(GATEWAY, STDIO)?.rate_to(others)
    };
    let megabytes = |memory: Memory| memory.resident_kib as f64 * 1024.0 / 1e6;
    vec![
        budget::PING.verdict(ratio(Server::None, Client::Sessionless)),
        budget::PING_IN_SESSION.verdict(ratio(Server::None, Client::Session)),
        budget::CALL_ASYNC.verdict(ratio(Server::Async, Client::Session)),
        budget::CALL_SYNC.verdict(ratio(Server::Sync, Client::Session)),
        budget::CALL_ASYNC_WORKER.verdict(worker(Server::Async)),
        budget::CALL_SYNC_WORKER.verdict(worker(Server::Sync)),
        budget::CALL_STDIO.verdict(ratio(STDIO.server, Client::Session)),
        budget::CALL_STDIO_RATE.verdict(rate()),
        budget::CALL_STDIO_TO_NGINX_AND_APP.verdict(to_nginx(Text::Words, true)),
        budget::ADDED_P50.verdict(alone(Server::Async).and_then(Row::added_p50_us)),
        budget::ADDED_P99.verdict(alone(Server::Async).and_then(Row::added_p99_us)),
        budget::ADDED_STDIO_P50.verdict(alone(STDIO.server).and_then(Row::added_p50_us)),
        budget::ADDED_STDIO_P99.verdict(alone(STDIO.server).and_then(Row::added_p99_us)),
        budget::BODY_16_KIB.verdict(to_nginx(Text::Kb16, false)),
        budget::BODY_1_MIB.verdict(to_nginx(Text::Mb1, false)),
        budget::IDLE_MEMORY.verdict(found.idle.map(megabytes)),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::found::tests::{alone, loaded};
    use super::*;
    use crate::report::budget::Outcome;

    #[test]
    fn a_run_that_found_nothing_measured_nothing() {
        let verdicts = all(&Found::default());
        assert!(
            verdicts
                .iter()
                .all(|verdict| verdict.outcome == Outcome::NotMeasured)
        );
    }

    #[test]
    fn bodies_are_compared_with_nginx_alone_and_small_calls_with_the_application_too() {
        let mut found = Found::default();
        // With a server of 2 each: 27 to 12, and 50 to 25 without.
        found.load(GATEWAY, STDIO, loaded(1, 25.0, Some(10.0)));
        found.load(NGINX, APP, loaded(1, 10.0, Some(10.0)));
        found.load(GATEWAY, STDIO.with(Text::Kb16), loaded(1, 50.0, Some(10.0)));
        found.load(NGINX, APP.with(Text::Kb16), loaded(1, 25.0, Some(10.0)));
        found.call_alone(GATEWAY, STDIO, alone(10.0, 40.0));
        let verdicts = all(&found);
        let measured = |budget: &budget::Budget| {
            let found = verdicts.iter().find(|verdict| verdict.what == budget.what);
            found.unwrap().measured.clone()
        };
        assert_eq!(measured(&budget::CALL_STDIO), "2.50 n");
        assert_eq!(measured(&budget::CALL_STDIO_TO_NGINX_AND_APP), "2.25 x");
        assert_eq!(measured(&budget::BODY_16_KIB), "2.00 x");
        assert_eq!(measured(&budget::BODY_1_MIB), "-");
        assert_eq!(measured(&budget::ADDED_STDIO_P50), "30 us");
        assert_eq!(measured(&budget::CALL_STDIO_RATE), "-");
    }

    #[test]
    fn the_rate_is_compared_with_a_peer_of_that_name_within_a_repetition() {
        let mut found = Found::default();
        for (repetition, rates) in [(1, (600.0, 200.0)), (2, (300.0, 60.0)), (3, (400.0, 100.0))] {
            for (front, rate) in [(GATEWAY, rates.0), (AGENTGATEWAY, rates.1)] {
                let mut loaded = loaded(repetition, 1.0, None);
                loaded.sample.per_second = rate;
                found.load(front, STDIO, loaded);
            }
        }
        let verdicts = all(&found);
        let rate = verdicts
            .iter()
            .find(|verdict| verdict.what == budget::CALL_STDIO_RATE.what);
        assert_eq!(rate.unwrap().measured, "4.00 x");
    }
}
