//! The servers and locations of an nginx configuration that proxy requests, and the directives in force at each.
//!
//! A location that proxies requests is called an *exposure*. The importer reads all settings of nginx at exposures, including
//! the settings that they inherit from enclosing blocks.

use std::collections::HashMap;
use std::rc::Rc;

use crate::detours;
use crate::known::{Treatment, treatment};
use crate::logs;
use crate::refusals::denies_everyone;
use crate::report::Report;
use crate::scope::{Level, Paths, Scope};
use crate::tree::{Directive, Failure};

/// Maximum number of locations that proxy requests; a configuration with more is refused.
const EXPOSURES_MAX: usize = 1_000;

/// Maximum number of `if` conditions that apply to one location; a configuration with more is refused.
const CONDITIONS_MAX: usize = 100;

/// A location of nginx that proxies requests.
pub(crate) struct ProxiedLocation<'a> {
    /// The `location` directive; in a file without locations, the `server` block or the first directive.
    pub(crate) at: &'a Directive,
    pub(crate) scope: Scope<'a>,
    pub(crate) paths: Option<Paths<'a>>,
    /// The `proxy_pass` directive; `None` in a file that proxies no requests.
    pub(crate) pass: Option<&'a Directive>,
    /// Index of the nginx server that contains the location.
    pub(crate) site: usize,
}

/// A `server` block that proxies requests.
pub(crate) struct Site<'a> {
    /// The `server` block; `None` if the locations are at the top level of the file.
    pub(crate) block: Option<&'a Directive>,
    pub(crate) level: Rc<Level<'a>>,
    pub(crate) scope: Scope<'a>,
}

/// All servers and proxied locations of an nginx configuration.
pub(crate) struct Sites<'a> {
    /// The directives outside the `http` block, which configure processes and connections.
    pub(crate) main: Rc<Level<'a>>,
    pub(crate) http: Rc<Level<'a>>,
    pub(crate) sites: Vec<Site<'a>>,
    pub(crate) proxied_locations: Vec<ProxiedLocation<'a>>,
    /// The `stub_status` directives: pages with nginx's own counters.
    pub(crate) status: Vec<&'a Directive>,
}

/// Paths on which servers usually answer health probes.
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

/// Paths that authorization servers usually have.
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
    /// Finds the locations that proxy requests, and reports directives of enclosing blocks without an equivalent.
    ///
    /// # Errors
    ///
    /// If there are more locations or conditions than the maximum.
    pub(crate) fn of(tree: &'a [Directive], report: &mut Report) -> Result<Self, Failure> {
        let main = Level::of(tree);
        check_top(&main)?;
        // Without an `http` block the file is one of `sites-enabled`, which nginx includes inside `http`.
        let http = match main.last("http") {
            Some(block) => Level::of(block.block()),
            None => Rc::clone(&main),
        };
        let mut sites = Self {
            main,
            http: Rc::clone(&http),
            sites: Vec::new(),
            proxied_locations: Vec::new(),
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
            // Locations outside any server: the file is included in a `server` block, so its other directives count as those of
            // the server.
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
        if sites.proxied_locations.iter().all(|it| it.pass.is_none()) {
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
        // `internal` is inherited: it also applies to nested locations.
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
        } else if pass.is_some() && denies_everyone(&level) && !any {
            report.plain(location, "lets nobody in: its server is left out");
        } else if pass.is_some() {
            self.expose(ProxiedLocation {
                at: location,
                scope,
                paths: Some(paths),
                pass,
                site: self.sites.len().saturating_sub(1),
            })?;
        } else {
            let denies = denies_everyone(&level);
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

    fn expose(&mut self, proxied_location: ProxiedLocation<'a>) -> Result<(), Failure> {
        if self.proxied_locations.len() >= EXPOSURES_MAX {
            return Err(Failure {
                place: proxied_location.at.place.clone(),
                what: format!("more than {EXPOSURES_MAX} locations pass requests on"),
            });
        }
        if proxied_location.scope.conditions().len() > CONDITIONS_MAX {
            return Err(Failure {
                place: proxied_location.at.place.clone(),
                what: format!("a request passes more than {CONDITIONS_MAX} conditions"),
            });
        }
        self.proxied_locations.push(proxied_location);
        Ok(())
    }

    /// Adds exposures (locations whose settings are imported) for a file that proxies no requests but may admit or refuse some,
    /// such as a file included elsewhere. Its locations count as exposures; without locations its servers, and without servers
    /// the complete file.
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
                self.proxied_locations
                    .extend(site.block.map(|at| ProxiedLocation {
                        at,
                        scope: site.scope.clone(),
                        paths: None,
                        pass: None,
                        site: index,
                    }));
            }
            for (at, level) in serving {
                self.proxied_locations.push(ProxiedLocation {
                    at,
                    scope: site.scope.with(&level),
                    paths: None,
                    pass: None,
                    site: index,
                });
            }
        }
        if self.sites.is_empty() && self.http.all("server").is_empty() {
            self.proxied_locations
                .extend(tree.first().map(|at| ProxiedLocation {
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

    /// Removes servers without a proxied location, since they need no listener.
    fn drop_empty_servers(&mut self) {
        let mut kept = Vec::new();
        let mut places = HashMap::new();
        for (index, site) in self.sites.drain(..).enumerate() {
            if self.proxied_locations.iter().any(|it| it.site == index) {
                places.insert(index, kept.len());
                kept.push(site);
            }
        }
        self.sites = kept;
        for proxied_location in &mut self.proxied_locations {
            proxied_location.site = places
                .get(&proxied_location.site)
                .copied()
                .unwrap_or_default();
        }
    }

    /// Reports each directive without an equivalent once, if it is in force for a proxied location.
    fn list_leftovers(&self, report: &mut Report) {
        let mut blocks = vec![&self.main, &self.http];
        blocks.extend(self.sites.iter().map(|site| &site.level));
        blocks.extend(
            self.proxied_locations
                .iter()
                .flat_map(|it| it.scope.levels.iter()),
        );
        let mut seen: Vec<*const Level<'a>> = Vec::new();
        for level in blocks {
            if seen.contains(&Rc::as_ptr(level)) {
                continue;
            }
            seen.push(Rc::as_ptr(level));
            let in_force = |name: &str| {
                let mut levels = self
                    .proxied_locations
                    .iter()
                    .filter_map(|it| it.scope.level_of(name));
                levels.any(|it| Rc::ptr_eq(it, level))
            };
            let outside = Rc::ptr_eq(level, &self.main) && !Rc::ptr_eq(level, &self.http);
            for directive in level.block {
                match treatment(directive.name(), directive.first()) {
                    Treatment::Fine | Treatment::Mapped => {}
                    // Directives outside `http` refuse no requests, so that their omission opens no access.
                    Treatment::Security(_) if outside => {
                        report.plain(directive, "has no counterpart");
                    }
                    Treatment::Plain(why) if outside || in_force(directive.name()) => {
                        report.plain(directive, why);
                    }
                    Treatment::Security(why) if in_force(directive.name()) => {
                        report.security(directive, why);
                    }
                    // A directive that inner blocks override everywhere is not in force, and not reported.
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

/// Returns true if a server answers every request itself and proxies none, so that it needs no listener.
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

/// Returns an error for files that nginx itself would refuse, and for files whose directives in force would be ambiguous.
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
