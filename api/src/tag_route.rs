//! TagRoute: the spec as written, validated, and as its policy gets it.

#[cfg(feature = "schema")]
mod schema;
#[cfg(feature = "manifest")]
mod spec;

#[cfg(feature = "schema")]
pub(crate) use schema::schema;

#[cfg(feature = "manifest")]
pub use spec::{Tag, TagRouteSpec};

/// The parameter of an endpoint, and the attachment or parameter of a call, that names a tag.
pub const TAG: &str = "dubbo.tag";

/// The attachment or parameter of a call that says, when it is `true`, that its tag is a must.
pub const FORCE_TAG: &str = "dubbo.force.tag";

/// Most addresses of a rule, of all of its tags together: what a policy reads in a fraction of the
/// time that it has for a rule.
pub const MAX_ADDRESSES: usize = 2_000;
