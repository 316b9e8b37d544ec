//! Open links to the pages: the principal that may use a link, the steps that its visitor has done, and bounds on their number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use serde::{Deserialize, Serialize};
use tooldock_base::names::NamespaceName;
use tooldock_filters::token::TokenDigest;
use tooldock_sessions::session::{Session, SessionKey, SessionState};

use super::LIFETIME;
use super::cookies::cookies;
use crate::issuers::login::AuthorizationRequest;
use crate::remote::authorize::Asking;
use crate::web_session::random;

/// Maximum number of open links in this process. If it is reached, no further link is made or opened.
const LINKS_MAX: usize = 10_000;
/// Maximum number of open links of a principal. A further link replaces the oldest.
const LINKS_OF_PRINCIPAL_MAX: usize = 16;
/// Maximum number of attempts with a link: requests for an authorization, and sign-ins begun at an issuer, counted together.
const ATTEMPTS_MAX: u8 = 8;
/// Minimum remaining lifetime of an open link that is offered again. With less time left, a new link is made.
const LEFT_MIN: Duration = Duration::from_secs(300);
/// Random id of a link.
pub(crate) type LinkId = [u8; 16];

/// Facts about a link that its token, the sealed last part of its URL, contains.
#[derive(Clone, Serialize, Deserialize)]
struct LinkFacts {
    id: LinkId,
    /// Number of the replica that made the link.
    replica: u32,
    namespace: NamespaceName,
    principal: Arc<str>,
    /// Time at which the link expires, in seconds since 1970.
    expires: u64,
}

/// Link whose page a visitor has opened.
#[derive(Clone)]
pub(crate) struct LinkView {
    pub(crate) id: LinkId,
    pub(crate) namespace: NamespaceName,
    pub(crate) principal: Arc<str>,
    pub(crate) token: Arc<str>,
}

/// Link that is offered to a client, with its remaining lifetime (`left`).
pub(super) struct OfferedLink {
    pub(super) id: LinkId,
    pub(super) token: Arc<str>,
    pub(super) left: Duration,
    pub(super) is_new: bool,
}

/// Reason why a link cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkRefusal {
    /// The gateway has not made the link, or the link was changed.
    Unknown,
    /// The link was used, has expired or was replaced, the session of its call has ended, or the gateway was restarted.
    Over,
    /// Too many links are open.
    Full,
}

/// Visitor who has signed in as the link's principal, recognised by the browser's cookie.
pub(crate) struct SignedInVisitor {
    pub(crate) link: LinkView,
    /// Authorization that was requested with the link; `None` if none was requested yet.
    pub(crate) asking: Option<Arc<Asking>>,
}

struct OpenLink {
    facts: LinkFacts,
    token: Arc<str>,
    /// The session of the call; `None` for calls without a session, and for links of other replicas.
    session: Option<Weak<Session>>,
    is_used: bool,
    /// Digest of the cookie of the browser in which the principal has signed in.
    browser: Option<TokenDigest>,
    /// Sign-in at an issuer that has begun: digest of the browser's cookie, `state` of the request, and the request itself.
    sign_in: Option<(TokenDigest, String, AuthorizationRequest)>,
    /// Authorization that was requested with the link; `None` before the request, and once its redirect has arrived.
    asking: Option<Arc<Asking>>,
    attempts: u8,
}

/// Open links that this process made, and links of other replicas whose pages were opened here.
pub(crate) struct LinkTable {
    key: SessionKey,
    replica: u32,
    /// The lock is never held across an await.
    open: Mutex<HashMap<LinkId, OpenLink>>,
}

impl LinkTable {
    /// Creates an empty table. `key` seals the links, and `replica` is the number of this replica.
    pub(crate) fn new(key: SessionKey, replica: u32) -> Self {
        Self {
            key,
            replica,
            open: Mutex::default(),
        }
    }

    /// Returns the open link of the same principal, namespace and session if it has enough time left, or else a new link. `None`
    /// if too many links are open, or if the random number generator fails.
    pub(super) fn open(
        &self,
        namespace: &NamespaceName,
        principal: &str,
        session: Option<&Arc<Session>>,
    ) -> Option<OfferedLink> {
        let session = session.map(Arc::downgrade);
        let now = now();
        let mut open = self.swept(now);
        let same = |link: &&OpenLink| {
            let is_session = match (&link.session, &session) {
                (Some(own), Some(session)) => own.ptr_eq(session),
                (own, session) => own.is_none() && session.is_none(),
            };
            !link.is_used
                && is_session
                && link.facts.namespace == *namespace
                && *link.facts.principal == *principal
                && link.facts.expires >= now + LEFT_MIN.as_secs()
        };
        if let Some(link) = open.values().find(same) {
            return Some(OfferedLink {
                id: link.facts.id,
                token: Arc::clone(&link.token),
                left: Duration::from_secs(link.facts.expires - now),
                is_new: false,
            });
        }
        let mut id = LinkId::default();
        getrandom::fill(&mut id).ok()?;
        let facts = LinkFacts {
            id,
            replica: self.replica,
            namespace: namespace.clone(),
            principal: principal.into(),
            expires: now + LIFETIME.as_secs(),
        };
        let sealed = self.key.seal_link(&serde_json::to_vec(&facts).ok()?);
        let token: Arc<str> = sealed.ok()?.into();
        let link = OpenLink::new(facts, Arc::clone(&token), session);
        insert(&mut open, link)?;
        Some(OfferedLink {
            id,
            token,
            left: LIFETIME,
            is_new: true,
        })
    }

    /// Finds the link of a token. Adds a link of another replica to the table.
    pub(crate) fn find(&self, token: &str) -> Result<LinkView, LinkRefusal> {
        let facts = self.key.open_link(token).ok_or(LinkRefusal::Unknown)?;
        let facts: LinkFacts = serde_json::from_slice(&facts).map_err(|_| LinkRefusal::Unknown)?;
        let now = now();
        if facts.expires <= now {
            return Err(LinkRefusal::Over);
        }
        let mut open = self.swept(now);
        if let Some(link) = open.get(&facts.id) {
            return link.view().ok_or(LinkRefusal::Over);
        }
        if facts.replica == self.replica {
            return Err(LinkRefusal::Over);
        }
        let link = OpenLink::new(facts, token.into(), None);
        let view = link.view().ok_or(LinkRefusal::Over)?;
        insert(&mut open, link).ok_or(LinkRefusal::Full)?;
        Ok(view)
    }

    /// Registers the browser in which the link's principal has signed in. Returns the value of the browser's cookie; `None` if
    /// the link is not in the table, or if the random number generator fails.
    pub(crate) fn sign_in(&self, id: LinkId) -> Option<String> {
        let cookie = random()?;
        let mut open = self.lock();
        let link = open.get_mut(&id)?;
        link.browser = Some(TokenDigest::of(cookie.as_bytes()));
        // An authorization that another browser has requested must not be completed in this one.
        (link.asking, link.sign_in) = (None, None);
        Some(cookie)
    }

    /// Registers the start of a sign-in at an issuer. Returns the value of the browser's cookie; `None` if the link is not in the
    /// table, or if the random number generator fails.
    pub(crate) fn begin_sign_in(
        &self,
        id: LinkId,
        state: String,
        request: AuthorizationRequest,
    ) -> Option<String> {
        let cookie = random()?;
        let mut open = self.lock();
        let link = open.get_mut(&id)?;
        link.sign_in = Some((TokenDigest::of(cookie.as_bytes()), state, request));
        Some(cookie)
    }

    /// Removes and returns the sign-in with this `state`, if the request's cookies are those of the browser that began it.
    pub(crate) fn take_sign_in(
        &self,
        state: &str,
        (headers, is_secure): (&HeaderMap, bool),
    ) -> Option<(LinkView, AuthorizationRequest)> {
        let mut open = self.swept(now());
        for (id, cookie) in cookies(headers, is_secure) {
            let Some(link) = open.get_mut(&id) else {
                continue;
            };
            let is_own = link
                .sign_in
                .as_ref()
                .is_some_and(|(digest, own, _)| digest.matches(&cookie) && own == state);
            if let (true, Some(view)) = (is_own, link.view()) {
                let (_, _, request) = link.sign_in.take()?;
                return Some((view, request));
            }
        }
        None
    }

    /// Returns the signed-in visitor of a link; `None` if the request's cookies are not those of the browser that signed in, or
    /// if the link cannot be used. `is_secure`: true if browsers reach the pages over https, false over http.
    pub(crate) fn signed_in(
        &self,
        id: LinkId,
        (headers, is_secure): (&HeaderMap, bool),
    ) -> Option<SignedInVisitor> {
        let open = self.lock();
        let link = open.get(&id)?;
        let browser = link.browser.as_ref()?;
        let mut shown = cookies(headers, is_secure);
        let is_own = shown.any(|(of, cookie)| of == id && cookie.matches(browser));
        let view = link.view().filter(|_| is_own)?;
        Some(SignedInVisitor {
            link: view,
            asking: link.asking.clone(),
        })
    }

    /// Counts an attempt to request an authorization, or to begin a sign-in at an issuer. Returns true if it is allowed; false after [`ATTEMPTS_MAX`] attempts, or if
    /// the link is not in the table.
    pub(crate) fn attempt(&self, id: LinkId) -> bool {
        let mut open = self.lock();
        open.get_mut(&id).and_then(OpenLink::attempt).is_some()
    }

    /// Stores the authorization that was requested with a link.
    pub(crate) fn set_asking(&self, id: LinkId, asking: Arc<Asking>) {
        if let Some(link) = self.lock().get_mut(&id) {
            link.asking = Some(asking);
        }
    }

    /// Removes and returns the requested authorization that a redirect answers, if the request's cookies are those of the browser
    /// that signed in. `address`: the full URL of the redirect.
    pub(crate) fn take_asking(
        &self,
        address: &str,
        (headers, is_secure): (&HeaderMap, bool),
    ) -> Option<(LinkView, Arc<Asking>)> {
        let mut open = self.swept(now());
        for (id, cookie) in cookies(headers, is_secure) {
            let Some(link) = open.get_mut(&id) else {
                continue;
            };
            let is_browser = link.browser.as_ref().is_some_and(|it| it.matches(&cookie));
            let is_answered = link.asking.as_ref().is_some_and(|it| it.is_for(address));
            if let (true, true, Some(view)) = (is_browser, is_answered, link.view()) {
                return Some((view, link.asking.take()?));
            }
        }
        None
    }

    /// Marks a link as used. Returns true if it was usable; false if it was used already or has ended.
    pub(crate) fn use_up(&self, id: LinkId) -> bool {
        let mut open = self.swept(now());
        let Some(link) = open.get_mut(&id).filter(|it| it.view().is_some()) else {
            return false;
        };
        (link.is_used, link.browser) = (true, None);
        (link.asking, link.sign_in) = (None, None);
        true
    }

    /// Locks the table, and removes expired links.
    fn swept(&self, now: u64) -> MutexGuard<'_, HashMap<LinkId, OpenLink>> {
        let mut open = self.lock();
        if open.len() >= LINKS_MAX / 2 || open.values().any(|it| it.facts.expires <= now) {
            open.retain(|_, link| link.facts.expires > now);
        }
        open
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LinkId, OpenLink>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds a link, in place of the oldest link of its principal if the principal has [`LINKS_OF_PRINCIPAL_MAX`]. `None` if
/// [`LINKS_MAX`] links are open.
fn insert(open: &mut HashMap<LinkId, OpenLink>, link: OpenLink) -> Option<()> {
    let own = open
        .values()
        .filter(|it| it.facts.principal == link.facts.principal);
    let mut own: Vec<_> = own.map(|it| (it.facts.expires, it.facts.id)).collect();
    if own.len() >= LINKS_OF_PRINCIPAL_MAX {
        own.sort_unstable();
        open.remove(&own.first()?.1);
    }
    if open.len() >= LINKS_MAX {
        return None;
    }
    open.insert(link.facts.id, link);
    Some(())
}

impl OpenLink {
    fn new(facts: LinkFacts, token: Arc<str>, session: Option<Weak<Session>>) -> Self {
        Self {
            facts,
            token,
            session,
            is_used: false,
            browser: None,
            sign_in: None,
            asking: None,
            attempts: 0,
        }
    }

    /// Returns the link for a page; `None` if the link was used, or if the session of its call has ended.
    fn view(&self) -> Option<LinkView> {
        let is_live = |session: &Weak<Session>| {
            let session = session.upgrade();
            session.is_some_and(|it| it.state() != SessionState::Closed)
        };
        let is_usable = !self.is_used && self.session.as_ref().is_none_or(is_live);
        is_usable.then(|| LinkView {
            id: self.facts.id,
            namespace: self.facts.namespace.clone(),
            principal: Arc::clone(&self.facts.principal),
            token: Arc::clone(&self.token),
        })
    }

    fn attempt(&mut self) -> Option<()> {
        (self.attempts < ATTEMPTS_MAX).then(|| self.attempts += 1)
    }
}

/// Returns the current time in seconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::COOKIE;

    use super::super::cookies::set_cookie;
    use super::*;

    fn table(replica: u32) -> LinkTable {
        LinkTable::new(SessionKey::from_text("a key"), replica)
    }

    fn name(text: &str) -> NamespaceName {
        text.parse().expect("a name")
    }

    fn open(table: &LinkTable, principal: &str) -> OfferedLink {
        let given = table.open(&name("own"), principal, None);
        given.expect("a link")
    }

    fn showing(id: LinkId, cookie: &str) -> HeaderMap {
        let cookie = set_cookie(id, cookie, "/connect", true);
        let pair = cookie.split(';').next().expect("a pair");
        let value = format!("other=1; {pair}");
        let value = HeaderValue::from_str(&value).expect("a value");
        HeaderMap::from_iter([(COOKIE, value)])
    }

    #[test]
    fn a_link_is_used_once_and_is_not_readable() {
        let table = table(1);
        let given = open(&table, "ada");
        assert!(!given.token.contains("ada"));
        let Ok(view) = table.find(&given.token) else {
            panic!("the link is open");
        };
        assert_eq!((&*view.principal, view.namespace), ("ada", name("own")));
        let again = open(&table, "ada");
        assert!(again.token == given.token && !again.is_new);
        assert!(table.use_up(given.id));
        assert!(!table.use_up(given.id));
        let refusal = table.find(&given.token).err();
        assert_eq!(refusal, Some(LinkRefusal::Over));
        assert_ne!(open(&table, "ada").token, given.token);
        let changed = given.token.replace(&given.token[20..21], "~");
        assert_eq!(table.find(&changed).err(), Some(LinkRefusal::Unknown));
    }

    #[test]
    fn only_the_browser_that_signed_in_can_continue() {
        let table = table(1);
        let (given, other) = (open(&table, "ada"), open(&table, "bob"));
        assert!(
            table
                .signed_in(given.id, (&HeaderMap::new(), true))
                .is_none()
        );
        let cookie = table.sign_in(given.id).expect("a cookie");
        let foreign = table.sign_in(other.id).expect("a cookie");
        assert!(
            table
                .signed_in(given.id, (&showing(given.id, &cookie), true))
                .is_some()
        );
        for headers in [
            HeaderMap::new(),
            showing(given.id, &foreign),
            showing(other.id, &cookie),
        ] {
            assert!(table.signed_in(given.id, (&headers, true)).is_none());
        }
        // A second sign-in replaces the first.
        table.sign_in(given.id).expect("a cookie");
        assert!(
            table
                .signed_in(given.id, (&showing(given.id, &cookie), true))
                .is_none()
        );
    }

    #[test]
    fn a_new_link_displaces_only_links_of_the_same_principal() {
        let table = table(1);
        let kept = open(&table, "bob");
        let links = (0..LINKS_OF_PRINCIPAL_MAX + 3).map(|number| {
            let given = table.open(&name(&format!("n{number}")), "ada", None);
            given.expect("a link")
        });
        let links: Vec<_> = links.collect();
        let usable = links.iter().filter(|it| table.find(&it.token).is_ok());
        assert_eq!(usable.count(), LINKS_OF_PRINCIPAL_MAX);
        assert!(table.find(&kept.token).is_ok());
    }

    #[test]
    fn a_replica_with_the_same_key_serves_the_links_of_another() {
        let (one, two) = (table(1), table(2));
        let given = open(&one, "ada");
        assert!(two.find(&given.token).is_ok());
        assert!(two.use_up(given.id));
        assert_eq!(two.find(&given.token).err(), Some(LinkRefusal::Over));
        // A restarted replica does not know its own earlier links, which count as over.
        assert_eq!(table(1).find(&given.token).err(), Some(LinkRefusal::Over));
        let foreign = LinkTable::new(SessionKey::from_text("another"), 2);
        assert_eq!(foreign.find(&given.token).err(), Some(LinkRefusal::Unknown));
    }
}
