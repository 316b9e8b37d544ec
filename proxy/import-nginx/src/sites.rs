//! The servers and locations of an nginx configuration that proxy requests, and the directives in force at each.
//!
//! A location that proxies requests is called an *exposure*. The importer reads all settings of nginx at exposures, including
//! the settings that they inherit from enclosing blocks.

use std::collections::HashSet;
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
    pub(crate) locations: Vec<ProxiedLocation<'a>>,
    /// The `stub_status` directives: pages with nginx's own counters.
    pub(crate) status: Vec<&'a Directive>,
}

/// Paths on which servers usually answer health probes.
#[rustfmt::skip]
const PROBES: [&str; 9] = ["/health", "/healthz", "/ready", "/readyz", "/live", "/livez", "/ping", "/status", "/nginx_status"];

/// Paths that authorization servers usually have.
#[rustfmt::skip]
const LOGIN: [&str; 9] = ["/authorize", "/token", "/register", "/revoke", "/oauth", "/oauth2", "/login", "/callback", "/jwks"];

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
            locations: Vec::new(),
            status: Vec::new(),
        };
        let outer = Scope {
            levels: vec![Rc::clone(&http)],
            server: None,
        };
        for server in http.all("server") {
            let level = Level::of(server.block());
            let scope = outer.with(&level);
            sites.read_site(Some(server), level, scope, report)?;
        }
        if !http.all("location").is_empty() {
            // Locations outside any server: the file is included in a `server` block, so its other directives count as those of
            // the server.
            sites.read_site(None, http, outer.clone(), report)?;
        }
        if sites.locations.iter().all(|it| it.pass.is_none()) {
            if let Some(first) = tree.first() {
                report.plain(first, "no location of this configuration passes requests on to a server: there are no namespaces");
            }
            sites.expose_what_is_there(tree, &outer);
        }
        sites.drop_empty_servers();
        sites.list_leftovers(report);
        Ok(sites)
    }

    /// Reads a `server`, or the locations outside any server.
    fn read_site(
        &mut self,
        block: Option<&'a Directive>,
        level: Rc<Level<'a>>,
        mut scope: Scope<'a>,
        report: &mut Report,
    ) -> Result<(), Failure> {
        scope.server = Some(Rc::clone(&level));
        if is_answered(&level, report) {
            return Ok(());
        }
        self.status.extend(level.last("stub_status"));
        let locations: Vec<_> = level.all("location").to_vec();
        self.sites.push(Site {
            block,
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
        let pass = level.last("proxy_pass");
        for nested in level.all("location") {
            let why = "locations inside locations are not read: write this one beside the location around it";
            match pass {
                Some(_) => report.security(nested, why),
                None => report.plain(nested, why),
            }
        }
        let path = paths.path();
        // `internal` is inherited: it also applies to nested locations.
        if paths == Paths::Named || scope.last("internal").is_some() {
            if pass.is_some() {
                report.plain(location, "only nginx itself comes here, and nothing leads here in the gateway: its server is left out");
            }
        } else if let Some(status) = level.last("stub_status") {
            self.status.push(status);
        } else if let Some(answer) = level.answers() {
            detours::list_pages(&level, report);
            if !answer.first().starts_with('4') {
                report.plain(answer, lost_answer(path));
                logs::list_without(&level, report);
            }
        } else if pass.is_none() {
            list_unserved(location, &level, report);
        } else if PROBES.contains(&path) || path == "/metrics" {
            report.plain(location, "the gateway answers /health itself, and /ready and /metrics on its metrics listener");
        } else if path.starts_with("/.well-known") || LOGIN.contains(&path) {
            let why = "is about logging in, and no MCP server: see docs/oauth.md";
            report.plain(location, why);
        } else if denies_everyone(&level)
            && scope.last("satisfy").is_none_or(|it| it.first() == "all")
        {
            report.plain(location, "lets nobody in: its server is left out");
        } else {
            let site = self.sites.len().saturating_sub(1);
            let paths = Some(paths);
            return self.expose(ProxiedLocation {
                at: location,
                scope,
                paths,
                pass,
                site,
            });
        }
        Ok(())
    }

    fn expose(&mut self, location: ProxiedLocation<'a>) -> Result<(), Failure> {
        let place = &location.at.place;
        if self.locations.len() >= EXPOSURES_MAX {
            let what = format!("more than {EXPOSURES_MAX} locations pass requests on");
            return Err(Failure::at(place, what));
        }
        if location.scope.of_server_and_own("if").len() > CONDITIONS_MAX {
            let what = format!("a request passes more than {CONDITIONS_MAX} conditions");
            return Err(Failure::at(place, what));
        }
        self.locations.push(location);
        Ok(())
    }

    /// Adds exposures (locations whose settings are imported) for a file that proxies no requests but may admit or refuse some,
    /// such as a file included elsewhere. Its locations count as exposures; without locations its servers, and without servers
    /// the complete file.
    fn expose_what_is_there(&mut self, tree: &'a [Directive], outer: &Scope<'a>) {
        if self.sites.is_empty() && self.http.all("server").is_empty() {
            self.sites.push(Site {
                block: tree.first(),
                level: Rc::clone(&self.http),
                scope: outer.clone(),
            });
        }
        for (site, it) in self.sites.iter().enumerate() {
            let exposure = |at, scope| ProxiedLocation {
                at,
                scope,
                paths: None,
                pass: None,
                site,
            };
            let inside = it.level.all("location").iter();
            let inside = inside.map(|at| (*at, Level::of(at.block())));
            let answers = |it: &Level<'a>| it.answers().or(it.last("stub_status")).is_some();
            let serving = inside.filter(|(_, level)| !answers(level));
            let before = self.locations.len();
            let serving = serving.map(|(at, level)| exposure(at, it.scope.with(&level)));
            self.locations.extend(serving.take(EXPOSURES_MAX));
            if self.locations.len() == before {
                let whole = it.block.map(|at| exposure(at, it.scope.clone()));
                self.locations.extend(whole);
            }
        }
    }

    /// Removes servers without a proxied location, since they need no listener.
    fn drop_empty_servers(&mut self) {
        let mut kept = Vec::new();
        for (index, site) in self.sites.drain(..).enumerate() {
            let locations = self.locations.iter_mut();
            let mut here = locations.filter(|it| it.site == index).peekable();
            if here.peek().is_some() {
                here.for_each(|it| it.site = kept.len());
                kept.push(site);
            }
        }
        self.sites = kept;
    }

    /// Reports each directive without an equivalent once, if it is in force for a proxied location.
    fn list_leftovers(&self, report: &mut Report) {
        let of_sites = self.sites.iter().map(|site| &site.level);
        let of_locations = self.locations.iter().flat_map(|it| it.scope.levels.iter());
        let mut levels = vec![&self.main, &self.http];
        levels.extend(of_sites.chain(of_locations));
        let mut seen = HashSet::new();
        levels.retain(|level| seen.insert(Rc::as_ptr(level)));
        for level in levels {
            let is_outside = Rc::ptr_eq(level, &self.main) && !Rc::ptr_eq(level, &self.http);
            let is_in_force = |at: &Directive| {
                let locations = self.locations.iter();
                let mut levels = locations.filter_map(|it| it.scope.level_of(at.name()));
                levels.any(|it| Rc::ptr_eq(it, level))
            };
            for at in level.block {
                match treatment(at.name(), at.first()) {
                    // Directives outside `http` refuse no requests, so that their omission opens no access.
                    Treatment::Security(_) if is_outside => report.plain(at, "has no counterpart"),
                    Treatment::Security(why) if is_in_force(at) => report.security(at, why),
                    Treatment::Plain(why) if is_outside || is_in_force(at) => report.plain(at, why),
                    // A directive that inner blocks override everywhere is not in force, and not reported.
                    _ => {}
                }
            }
        }
    }
}

/// Reports a location that neither proxies nor answers requests.
fn list_unserved(location: &Directive, level: &Level<'_>, report: &mut Report) {
    let block = location.block();
    let limits = level.last("allow").or(level.last("limit_req")).is_some();
    let mut conditions = level.all("if").iter().flat_map(|it| it.block());
    if let Some(other) = block.iter().find(|it| it.name().ends_with("_pass")) {
        report.plain(other, "only HTTP is spoken to servers");
    } else if conditions.any(|it| it.is("proxy_pass")) {
        let why = "passes requests on by conditions: write the servers into upstreams.remote";
        report.plain(location, why);
    } else if !denies_everyone(level) && !limits && block.iter().any(|it| !it.is("location")) {
        let why = "passes nothing on to a server: the gateway serves no files";
        report.plain(location, why);
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
    if answer.args().any(|arg| arg.starts_with("https://")) {
        report.plain(answer, "the gateway sends nobody from http to https: it does not listen here, give clients the https address");
    } else if !answer.first().starts_with('4') {
        let why =
            "the gateway answers with no texts or redirects of its own, and does not listen here";
        report.plain(answer, why);
    }
    true
}

/// Returns an error for files that nginx itself would refuse, and for files whose directives in force would be ambiguous.
fn check_top(main: &Level<'_>) -> Result<(), Failure> {
    let inside = ["server", "upstream", "map", "location", "if"];
    let (at, what) = match main.all("http") {
        [] => return Ok(()),
        [_] => match inside.iter().find_map(|name| main.last(name)) {
            None => return Ok(()),
            Some(at) => (at, "stands outside of http, where nginx does not take it"),
        },
        [_, second, ..] => (*second, "there is a second http block"),
    };
    Err(Failure::at(&at.place, what))
}
