//! The requests that an nginx passes on: its servers, their locations, and the directives in force at each.
//!
//! A location that passes requests on is an *exposure*. All properties of nginx are read at exposures, with the
//! directives that they inherit.

use std::collections::HashMap;
use std::rc::Rc;

use crate::detours;
use crate::known::{Treatment, treatment};
use crate::logs;
use crate::refusals::lets_nobody_in;
use crate::report::Report;
use crate::scope::{Level, Paths, Scope};
use crate::tree::{Directive, Failure};

/// Maximum number of locations that pass requests on; no one writes more for MCP servers by hand.
const EXPOSURES_MAX: usize = 1_000;

/// Maximum number of `if` conditions that a request to one location passes.
const CONDITIONS_MAX: usize = 100;

/// A location where requests are passed on to a server.
pub(crate) struct Exposure<'a> {
    /// The location; in a file without locations, the server or the first directive.
    pub(crate) at: &'a Directive,
    pub(crate) scope: Scope<'a>,
    pub(crate) paths: Option<Paths<'a>>,
    /// The directive that passes requests on.
    pub(crate) pass: Option<&'a Directive>,
    /// Index of the location's server.
    pub(crate) site: usize,
}

/// A `server` that passes requests on.
pub(crate) struct Site<'a> {
    /// The block; `None` if locations are at the top level of the file.
    pub(crate) block: Option<&'a Directive>,
    pub(crate) level: Rc<Level<'a>>,
    pub(crate) scope: Scope<'a>,
}

/// A complete configuration.
pub(crate) struct Sites<'a> {
    /// The block outside `http`: processes and connections.
    pub(crate) main: Rc<Level<'a>>,
    pub(crate) http: Rc<Level<'a>>,
    pub(crate) sites: Vec<Site<'a>>,
    pub(crate) exposures: Vec<Exposure<'a>>,
    /// `stub_status`: pages with counters of nginx itself.
    pub(crate) status: Vec<&'a Directive>,
}

/// Paths of health probes.
const PROBES: [&str; 9] = [
    "/health",
    "/healthz",
    "/ready",
    "/readyz",
    "/live",
    "/livez",
    "/ping",
    "/status",
    "/nginx_status",
];

/// Paths of authorization servers.
const LOGIN: [&str; 9] = [
    "/authorize",
    "/token",
    "/register",
    "/revoke",
    "/oauth",
    "/oauth2",
    "/login",
    "/callback",
    "/jwks",
];

impl<'a> Sites<'a> {
    /// Finds the exposures, and reports the enclosing directives that have no equivalent.
    ///
    /// # Errors
    ///
    /// When there are more locations than the bound.
    pub(crate) fn of(tree: &'a [Directive], report: &mut Report) -> Result<Self, Failure> {
        let main = Level::of(tree);
        check_top(&main)?;
        // Files of `sites-enabled` contain the content of `http`.
        let http = match main.last("http") {
            Some(block) => Level::of(block.block()),
            None => Rc::clone(&main),
        };
        let mut sites = Self {
            main,
            http: Rc::clone(&http),
            sites: Vec::new(),
            exposures: Vec::new(),
            status: Vec::new(),
        };
        let outer = Scope {
            levels: vec![Rc::clone(&http)],
            server: None,
        };
        for server in http.all("server") {
            sites.read_server(server, &outer, report)?;
        }
        if !http.all("location").is_empty() && !is_answered(&http, report) {
            // A snippet for inclusion in a server: directives outside the locations belong to the server.
            let inside = Scope {
                server: Some(Rc::clone(&http)),
                ..outer.clone()
            };
            sites.sites.push(Site {
                block: None,
                level: Rc::clone(&http),
                scope: inside.clone(),
            });
            for location in http.all("location") {
                sites.read_location(location, &inside, report)?;
            }
        }
        if sites.exposures.iter().all(|it| it.pass.is_none()) {
            if let Some(first) = tree.first() {
                report.plain(first, "no location of this configuration passes requests on to a server: there are no namespaces");
            }
            sites.expose_what_is_there(tree, &outer);
        }
        sites.drop_empty_servers();
        sites.list_leftovers(report);
        Ok(sites)
    }

    fn read_server(
        &mut self,
        server: &'a Directive,
        outer: &Scope<'a>,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let level = Level::of(server.block());
        let mut scope = outer.with(&level);
        scope.server = Some(Rc::clone(&level));
        if is_answered(&level, report) {
            return Ok(());
        }
        self.status.extend(level.last("stub_status"));
        let locations: Vec<_> = level.all("location").to_vec();
        self.sites.push(Site {
            block: Some(server),
            level,
            scope: scope.clone(),
        });
        for location in locations {
            self.read_location(location, &scope, report)?;
        }
        Ok(())
    }

    fn read_location(
        &mut self,
        location: &'a Directive,
        outer: &Scope<'a>,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let level = Level::of(location.block());
        let scope = outer.with(&level);
        let paths = Paths::of(location);
        for nested in level.all("location") {
            self.read_location(nested, &scope, report)?;
        }
        let pass = level.last("proxy_pass");
        let path = paths.path();
        let refuses = |it: &Directive| it.first().starts_with('4');
        let any = scope.last("satisfy").is_some_and(|it| it.first() == "any");
        // The directive holds in the locations inside, too.
        if paths == Paths::Named || scope.last("internal").is_some() {
            if pass.is_some() {
                report.plain(
                    location,
                    "only nginx itself comes here, and nothing leads here in the gateway: its server is left out",
                );
            }
        } else if let Some(status) = level.last("stub_status") {
            self.status.push(status);
        } else if let Some(answer) = level.answers() {
            detours::list_pages(&level, report);
            if !refuses(answer) {
                report.plain(answer, lost_answer(path));
                logs::list_without(&level, report);
            }
        } else if pass.is_some() && (PROBES.contains(&path) || path == "/metrics") {
            report.plain(location, "the gateway answers /health itself, and /ready and /metrics on its metrics listener");
        } else if pass.is_some() && (path.starts_with("/.well-known") || LOGIN.contains(&path)) {
            report.plain(
                location,
                "is about logging in, and no MCP server: see docs/oauth.md",
            );
        } else if pass.is_some() && lets_nobody_in(&level) && !any {
            report.plain(location, "lets nobody in: its server is left out");
        } else if pass.is_some() {
            self.expose(Exposure {
                at: location,
                scope,
                paths: Some(paths),
                pass,
                site: self.sites.len().saturating_sub(1),
            })?;
        } else {
            let denies = lets_nobody_in(&level);
            let other = location
                .block()
                .iter()
                .find(|it| it.name().ends_with("_pass"));
            let empty = location.block().iter().all(|it| it.is("location"));
            let mut conditions = level.all("if").iter().flat_map(|it| it.block());
            let conditional = conditions.any(|it| it.is("proxy_pass"));
            match other {
                Some(other) => report.plain(other, "only HTTP is spoken to servers"),
                None if conditional => report.plain(
                    location,
                    "passes requests on by conditions: write the servers into upstreams.remote",
                ),
                None if denies
                    || empty
                    || level.all("allow").len() + level.all("limit_req").len() > 0 => {}
                None => report.plain(
                    location,
                    "passes nothing on to a server: the gateway serves no files",
                ),
            }
        }
        Ok(())
    }

    fn expose(&mut self, exposure: Exposure<'a>) -> Result<(), Failure> {
        if self.exposures.len() >= EXPOSURES_MAX {
            return Err(Failure {
                place: exposure.at.place.clone(),
                what: format!("more than {EXPOSURES_MAX} locations pass requests on"),
            });
        }
        if exposure.scope.conditions().len() > CONDITIONS_MAX {
            return Err(Failure {
                place: exposure.at.place.clone(),
                what: format!("a request passes more than {CONDITIONS_MAX} conditions"),
            });
        }
        self.exposures.push(exposure);
        Ok(())
    }

    /// Adds exposures for a snippet: a file that proxies no requests, but may admit or refuse requests. Its locations, its
    /// servers or the complete file count as exposures.
    fn expose_what_is_there(&mut self, tree: &'a [Directive], outer: &Scope<'a>) {
        for (index, site) in self.sites.iter().enumerate() {
            let locations: Vec<_> = site
                .level
                .all("location")
                .iter()
                .map(|it| (*it, Level::of(it.block())))
                .collect();
            let mut serving: Vec<_> = locations
                .into_iter()
                .filter(|(_, level)| {
                    level.answers().is_none() && level.last("stub_status").is_none()
                })
                .collect();
            serving.truncate(EXPOSURES_MAX);
            if serving.is_empty() {
                self.exposures.extend(site.block.map(|at| Exposure {
                    at,
                    scope: site.scope.clone(),
                    paths: None,
                    pass: None,
                    site: index,
                }));
            }
            for (at, level) in serving {
                self.exposures.push(Exposure {
                    at,
                    scope: site.scope.with(&level),
                    paths: None,
                    pass: None,
                    site: index,
                });
            }
        }
        if self.sites.is_empty() && self.http.all("server").is_empty() {
            self.exposures.extend(tree.first().map(|at| Exposure {
                at,
                scope: outer.clone(),
                paths: None,
                pass: None,
                site: 0,
            }));
            self.sites.push(Site {
                block: None,
                level: Rc::clone(&self.http),
                scope: outer.clone(),
            });
        }
    }

    /// Removes servers without an exposure, which need no listener.
    fn drop_empty_servers(&mut self) {
        let mut kept = Vec::new();
        let mut places = HashMap::new();
        for (index, site) in self.sites.drain(..).enumerate() {
            if self.exposures.iter().any(|it| it.site == index) {
                places.insert(index, kept.len());
                kept.push(site);
            }
        }
        self.sites = kept;
        for exposure in &mut self.exposures {
            exposure.site = places.get(&exposure.site).copied().unwrap_or_default();
        }
    }

    /// Reports directives without an equivalent, each once, if they are in force for an exposure.
    fn list_leftovers(&self, report: &mut Report) {
        let mut blocks = vec![&self.main, &self.http];
        blocks.extend(self.sites.iter().map(|site| &site.level));
        blocks.extend(self.exposures.iter().flat_map(|it| it.scope.levels.iter()));
        let mut seen: Vec<*const Level<'a>> = Vec::new();
        for level in blocks {
            if seen.contains(&Rc::as_ptr(level)) {
                continue;
            }
            seen.push(Rc::as_ptr(level));
            let in_force = |name: &str| {
                let mut levels = self
                    .exposures
                    .iter()
                    .filter_map(|it| it.scope.level_of(name));
                levels.any(|it| Rc::ptr_eq(it, level))
            };
            let outside = Rc::ptr_eq(level, &self.main) && !Rc::ptr_eq(level, &self.http);
            for directive in level.block {
                match treatment(directive.name(), directive.first()) {
                    Treatment::Fine | Treatment::Mapped => {}
                    // Outside `http` no request is refused.
                    Treatment::Security(_) if outside => {
                        report.plain(directive, "has no counterpart");
                    }
                    Treatment::Plain(why) if outside || in_force(directive.name()) => {
                        report.plain(directive, why);
                    }
                    Treatment::Security(why) if in_force(directive.name()) => {
                        report.security(directive, why);
                    }
                    // Another location may set another value.
                    Treatment::Plain(_) | Treatment::Security(_) => {}
                }
            }
        }
    }
}

/// Report line for a location that answers requests itself.
fn lost_answer(path: &str) -> String {
    match PROBES.iter().find(|it| **it == path) {
        Some(&probe @ ("/health" | "/ready")) => format!(
            "the gateway answers {probe} itself, with a status and JSON: see that whoever asks reads the status"
        ),
        Some(probe) => format!(
            "nothing is served at {probe}: probes ask /health, which says that the process runs, or /ready, which says \
             that it takes requests"
        ),
        None => "the gateway answers with no texts or redirects of its own: the address of a server that does nothing else is not served".to_owned(),
    }
}

/// Returns true if a server answers every request itself before proxying it, so that it needs no listener.
fn is_answered(level: &Level<'_>, report: &mut Report) -> bool {
    let Some(answer) = level.answers() else {
        return false;
    };
    match answer.first() {
        code if code.starts_with('4') => {}
        _ if answer.args().any(|arg| arg.starts_with("https://")) => report.plain(
            answer,
            "the gateway sends nobody from http to https: it does not listen here, give clients the https address",
        ),
        _ => report.plain(
            answer,
            "the gateway answers with no texts or redirects of its own, and does not listen here",
        ),
    }
    true
}

/// Refuses files with faults that nginx itself refuses, and files in which the directives in force would be unclear.
fn check_top(main: &Level<'_>) -> Result<(), Failure> {
    let fails = |at: &Directive, what: &str| {
        Err(Failure {
            place: at.place.clone(),
            what: what.to_owned(),
        })
    };
    match main.all("http") {
        [] => Ok(()),
        [_] => {
            let inside = ["server", "upstream", "map", "location", "if"];
            let outside = inside.iter().find_map(|name| main.last(name));
            outside.map_or(Ok(()), |at| {
                fails(at, "stands outside of http, where nginx does not take it")
            })
        }
        [_, second, ..] => fails(second, "there is a second http block"),
    }
}
