//! The endpoints of a service, as a call sees them.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU32, Ordering},
};

use rulecast_policy::{abi, bits, endpoints as table};

/// Largest encoded table, in bytes.
const MAX_TABLE: usize = 2 * 1024 * 1024;

/// The parameter that tells the groups of a provider's endpoints apart.
pub(crate) const TAG: &str = "dubbo.tag";

/// Parameters by name, sorted. `address` is `host:port` where those two are there and it is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Params(Vec<(String, String)>);

impl Params {
    /// A parameter's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(n, _)| n.as_str().cmp(name)).ok()?;
        self.0.get(at).map(|(_, value)| value.as_str())
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Params {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut list: Vec<(String, String)> =
            pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        // The last of several with one name counts.
        list.reverse();
        list.sort_by(|a, b| a.0.cmp(&b.0));
        list.dedup_by(|later, first| later.0 == first.0);
        let mut params = Self(list);
        if params.get("address").is_none()
            && let (Some(host), Some(port)) = (params.get("host"), params.get("port"))
        {
            let address = match host.contains(':') {
                true => format!("[{host}]:{port}"),
                false => format!("{host}:{port}"),
            };
            let at = params.0.partition_point(|(name, _)| name.as_str() < "address");
            params.0.insert(at, ("address".to_owned(), address));
        }
        params
    }
}

/// One endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    params: Params,
}

impl Endpoint {
    /// At a host (a name or an IP without brackets) and port.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        let pairs = [("host".to_owned(), host.into()), ("port".to_owned(), port.to_string())];
        Self { params: pairs.into_iter().collect() }
    }

    /// From all of its parameters, `host` and `port` among them.
    pub fn from_params(params: Params) -> Self {
        Self { params }
    }

    /// With one more parameter, `region`, `version`, `application`, `dubbo.tag` …
    #[must_use]
    pub fn with(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let one = (name.into(), value.into());
        Self { params: self.params.0.into_iter().chain([one]).collect() }
    }

    /// Its host; empty when it has none.
    pub fn host(&self) -> &str {
        self.params.get("host").unwrap_or_default()
    }

    /// Its port, when it has a valid one.
    pub fn port(&self) -> Option<u16> {
        self.params.get("port")?.parse().ok()
    }

    /// `host:port`; empty when it has neither.
    pub fn address(&self) -> &str {
        self.params.get("address").unwrap_or_default()
    }

    /// All of its parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }
}

/// Why endpoints make no set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointsError {
    /// More than a set may have.
    #[error("{0} endpoints; at most 65536 make a set")]
    TooMany(usize),
    /// Too many parameters altogether.
    #[error("the parameters take {0} bytes; at most 2 MiB are allowed")]
    TooLarge(usize),
}

/// The endpoints of a service at one time. Immutable, encoded once, cheap to clone: keep one
/// until the endpoints change.
#[derive(Clone, Debug)]
pub struct EndpointSet(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: u32,
    endpoints: Vec<Endpoint>,
    table: Vec<u8>,
    all: Vec<u64>,
    applications: Vec<String>,
    tagged: bool,
}

/// Remembers a set without keeping it.
#[derive(Clone, Debug)]
pub(crate) struct WeakSet(Weak<Inner>);

impl WeakSet {
    /// Whether nobody has the set any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Default for EndpointSet {
    /// Without endpoints.
    fn default() -> Self {
        Self::of(Vec::new(), table::write(std::iter::empty::<std::iter::Empty<(&str, &[u8])>>()))
    }
}

impl EndpointSet {
    /// Makes a set.
    pub fn new(endpoints: impl IntoIterator<Item = Endpoint>) -> Result<Self, EndpointsError> {
        let endpoints: Vec<Endpoint> = endpoints.into_iter().collect();
        if endpoints.len() > abi::MAX_ENDPOINTS {
            return Err(EndpointsError::TooMany(endpoints.len()));
        }
        let table = table::write(
            endpoints.iter().map(|e| e.params.iter().map(|(name, value)| (name, value.as_bytes()))),
        );
        if table.len() > MAX_TABLE {
            return Err(EndpointsError::TooLarge(table.len()));
        }
        Ok(Self::of(endpoints, table))
    }

    fn of(endpoints: Vec<Endpoint>, table: Vec<u8>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let mut applications: Vec<String> = endpoints
            .iter()
            .filter_map(|e| e.params.get("application").map(str::to_owned))
            .collect();
        applications.sort_unstable();
        applications.dedup();
        let tagged = endpoints.iter().any(|e| e.params.get(TAG).is_some());
        let all = bits::all(endpoints.len());
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Inner { id, endpoints, table, all, applications, tagged }))
    }

    /// The endpoints, in the order given.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.0.endpoints
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.endpoints.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.endpoints.is_empty()
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id
    }

    /// To notice when nobody has it any more.
    pub(crate) fn downgrade(&self) -> WeakSet {
        WeakSet(Arc::downgrade(&self.0))
    }

    pub(crate) fn table(&self) -> &[u8] {
        &self.0.table
    }

    pub(crate) fn all(&self) -> &[u64] {
        &self.0.all
    }

    /// Whether one of them has a tag.
    pub(crate) fn tagged(&self) -> bool {
        self.0.tagged
    }

    pub(crate) fn applications(&self) -> &[String] {
        &self.0.applications
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn params_are_sorted_and_know_their_address() {
        let endpoint = Endpoint::new("10.0.0.1", 20880).with("region", "hz").with("region", "bj");
        assert_eq!(endpoint.address(), "10.0.0.1:20880");
        assert_eq!(endpoint.params().get("region"), Some("bj"));
        assert_eq!(endpoint.port(), Some(20880));
        assert_eq!(Endpoint::new("::1", 1).address(), "[::1]:1");
        assert_eq!(endpoint.params().get("none"), None);
    }

    #[test]
    fn sets_are_bounded() {
        let many = std::iter::repeat_n(Endpoint::default(), 65_537);
        assert_eq!(EndpointSet::new(many).err(), Some(EndpointsError::TooMany(65_537)));
        let large = Endpoint::new("a", 1).with("x", "y".repeat(3 << 20));
        assert!(matches!(EndpointSet::new([large]), Err(EndpointsError::TooLarge(_))));
    }
}
