//! Nested blocks of nginx, and the directives in force in a block: for most names, all directives of that name in the innermost
//! block that contains one.

use std::collections::HashMap;
use std::rc::Rc;

use crate::tree::Directive;

/// A block of nginx, with its directives by name.
pub(crate) struct Level<'a> {
    pub(crate) block: &'a [Directive],
    by_name: HashMap<&'a str, Vec<&'a Directive>>,
}

impl<'a> Level<'a> {
    pub(crate) fn of(block: &'a [Directive]) -> Rc<Self> {
        let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
        for directive in block {
            by_name.entry(directive.name()).or_default().push(directive);
        }
        Rc::new(Self { block, by_name })
    }

    pub(crate) fn all(&self, name: &str) -> &[&'a Directive] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn last(&self, name: &str) -> Option<&'a Directive> {
        self.all(name).last().copied()
    }

    /// Returns true if this block contains the on/off directive `name` with the value `on`.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.last(name).is_some_and(|it| it.first() == "on")
    }

    /// Returns the directive by which nginx itself answers every request to this block, so that none is proxied: a `return`, or a
    /// `rewrite` that redirects every path (`permanent` or `redirect`).
    pub(crate) fn answers(&self) -> Option<&'a Directive> {
        let moves = |it: &&Directive| {
            let path = it.first().trim_start_matches(['^', '/']);
            let path = path.trim_end_matches('$');
            matches!(path, "" | ".*" | "(.*)") && (it.has("permanent") || it.has("redirect"))
        };
        let rewrite = || self.all("rewrite").iter().copied().find(moves);
        self.last("return").or_else(rewrite)
    }
}

/// The nested blocks that contain a directive, from the outermost to the innermost.
#[derive(Clone)]
pub(crate) struct Scope<'a> {
    pub(crate) levels: Vec<Rc<Level<'a>>>,
    /// The nginx `server` block around the directive: its `if` and `rewrite` directives apply to every location in it.
    pub(crate) server: Option<Rc<Level<'a>>>,
}

impl<'a> Scope<'a> {
    pub(crate) fn with(&self, level: &Rc<Level<'a>>) -> Self {
        let mut scope = self.clone();
        scope.levels.push(Rc::clone(level));
        scope
    }

    /// Returns the last directive of this name that is in force.
    pub(crate) fn last(&self, name: &str) -> Option<&'a Directive> {
        self.all(name).last().copied()
    }

    /// Returns true if the on/off directive `name` in force has the value `on`.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.level_of(name).is_some_and(|level| level.is_on(name))
    }

    /// Returns true if an access directive in force, such as `auth_basic`, requires a credential. Conditions (`if`) do not count.
    pub(crate) fn asks_for_credential(&self) -> bool {
        let access = ["auth_basic", "auth_request", "auth_jwt"];
        let mut access = access.iter().filter_map(|name| self.last(name));
        access.any(|it| it.first() != "off")
    }

    /// Returns all directives of this name that are in force, for names that may occur several times.
    pub(crate) fn all(&self, name: &str) -> &[&'a Directive] {
        let level = self.level_of(name);
        level.map_or(&[], |level| level.all(name))
    }

    /// Returns the innermost block of this scope that contains directives of this name.
    pub(crate) fn level_of(&self, name: &str) -> Option<&Rc<Level<'a>>> {
        let mut levels = self.levels.iter().rev();
        levels.find(|level| !level.all(name).is_empty())
    }

    /// Returns the directives in force of several names that nginx evaluates as one list (`allow` and `deny`), in their order.
    pub(crate) fn in_order(&self, names: &[&str]) -> Vec<&'a Directive> {
        let has_any = |level: &&Rc<Level<'a>>| names.iter().any(|name| !level.all(name).is_empty());
        let Some(level) = self.levels.iter().rev().find(has_any) else {
            return Vec::new();
        };
        let listed = |it: &&Directive| names.contains(&it.name());
        level.block.iter().filter(listed).collect()
    }

    /// Iterates over the directives of the location itself, without those of its server.
    pub(crate) fn own(&self) -> impl Iterator<Item = &'a Directive> {
        let own = self.levels.last().filter(|own| {
            let server = self.server.as_ref();
            !server.is_some_and(|server| Rc::ptr_eq(server, own))
        });
        own.into_iter().flat_map(|level| level.block)
    }

    /// Returns all directives of this name of the server, then those of the location itself: every `if` or `rewrite` that
    /// applies to a request.
    pub(crate) fn of_server_and_own(&self, name: &str) -> Vec<&'a Directive> {
        let server = self.server.iter().flat_map(|level| level.block);
        server.chain(self.own()).filter(|it| it.is(name)).collect()
    }
}

/// The paths that a location of nginx matches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paths<'a> {
    Exactly(&'a str),
    Below(&'a str),
    Matching(&'a str),
    /// The location is a named one (`@name`), which only internal redirects of nginx reach.
    Named,
}

impl<'a> Paths<'a> {
    pub(crate) fn of(location: &'a Directive) -> Self {
        let signs = ["^~", "~*", "=", "~"].into_iter();
        let (sign, path) = match (location.first(), location.arg(1)) {
            (sign, Some(path)) => (sign, path),
            (text, None) => {
                let mut split = signs.filter_map(|sign| Some((sign, text.strip_prefix(sign)?)));
                split.next().unwrap_or(("", text))
            }
        };
        match sign {
            "=" => Self::Exactly(path),
            "~" | "~*" => Self::Matching(path),
            _ if path.starts_with('@') => Self::Named,
            _ => Self::Below(path),
        }
    }

    /// The location's path without a slash at its end; empty for a location without a path.
    pub(crate) fn path(&self) -> &'a str {
        match self {
            Self::Exactly(path) | Self::Below(path) => path.trim_end_matches('/'),
            Self::Matching(_) | Self::Named => "",
        }
    }
}
