//! Registration of service names, as clients of the Dubbo control plane do it: an application
//! says which interfaces it provides, and the plane writes that into the store.
//!
//! A write names the version that it was made of, and is made anew when another one was
//! faster, whoever that was: so no registration is lost, be it to another client, another
//! replica or a person.

use std::{any::Any, collections::BTreeMap, sync::Arc, time::Duration};

use rulecast_api::{
    Code, Digest, Kind, Kinds, Resource, ResourceId,
    proto::dubbo::mapping::{
        ServiceMappingRequest, ServiceMappingResponse,
        service_name_mapping_service_server::{
            ServiceNameMappingService, ServiceNameMappingServiceServer,
        },
    },
    service_name_mapping::ServiceNameMappingSpec,
};
use serde_json::json;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use crate::{
    index::{Index, Snapshot},
    observe::Caller,
    store::{Expected, Store, StoreError},
};

/// Largest request that is read, in bytes.
const MAX_REQUEST: usize = 256 << 10;
/// Interfaces of one request.
const MAX_INTERFACES: usize = 1000;
/// For all that one request writes.
const LIMIT: Duration = Duration::from_secs(20);
/// After a conflict the other writing is waited for; it may be one that brings no change.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest name of an object.
const MAX_NAME: usize = 253;
/// Label of what the plane made.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "rulecast");

/// `v1alpha1.ServiceNameMappingService`. Clones share everything.
#[derive(Clone)]
pub struct MappingService {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    index: Index,
    kind: Kind,
    /// One writes at a time: among ourselves nobody need lose and begin anew.
    turn: Mutex<()>,
}

/// Why a registration is refused, for its sender.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// A name that is none, or too many.
    #[error("{code}: {0}", code = Code::RequestInvalid)]
    Invalid(String),
    /// A namespace that is not the caller's.
    #[error(
        "{}: {own} cannot register for namespace {asked}; register for its own",
        Code::OtherApplication
    )]
    Namespace {
        /// The caller.
        own: String,
        /// What it asked for.
        asked: String,
    },
    /// The rules are not known yet.
    #[error("{}: the mappings are not known here yet; register again", Code::StoreDown)]
    Unlisted,
    /// The mapping that is there cannot be added to.
    #[error("{}: {id} is {why}; mend or delete it", Code::StoreConflict)]
    Occupied {
        /// It.
        id: ResourceId,
        /// What is with it.
        why: &'static str,
    },
    /// The store does not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl MappingService {
    /// Writes into `store`, by what `index` knows of it. `None`: the kind is not served.
    pub fn new(store: Arc<dyn Store>, index: Index, kinds: Kinds) -> Option<Self> {
        let kind = Kind::by_type(kinds, Kind::SERVICE_NAME_MAPPING.type_name)?;
        Some(Self { inner: Arc::new(Inner { store, index, kind, turn: Mutex::new(()) }) })
    }

    /// For a router, with the limits on messages set.
    pub fn into_server(self) -> ServiceNameMappingServiceServer<Self> {
        ServiceNameMappingServiceServer::new(self).max_decoding_message_size(MAX_REQUEST)
    }

    /// Adds `application` to the mappings of `interfaces` in a namespace, and returns when
    /// all of that is stored. What was stored before a failure stays; to register again does
    /// no harm.
    pub async fn register(
        &self,
        namespace: &str,
        application: &str,
        interfaces: &[String],
    ) -> Result<(), MappingError> {
        if interfaces.len() > MAX_INTERFACES {
            let message = format!("more than {MAX_INTERFACES} interfaces; register in parts");
            return Err(MappingError::Invalid(message));
        }
        let specs: Vec<_> =
            interfaces.iter().map(|name| spec(name, application)).collect::<Result<_, _>>()?;
        let deadline = Instant::now() + LIMIT;
        for spec in specs {
            self.inner.add(namespace, spec, deadline).await?;
        }
        Ok(())
    }
}

/// A mapping of one application, checked as any that is stored.
fn spec(interface: &str, application: &str) -> Result<ServiceNameMappingSpec, MappingError> {
    let spec = json!({ "interfaceName": interface, "applicationNames": [application] });
    ServiceNameMappingSpec::read(&spec).map_err(|errors| {
        let errors: Vec<_> = errors.iter().map(|e| format!("{}; {}", e.message, e.hint)).collect();
        let what = format!("interface {interface:?} of application {application:?}");
        MappingError::Invalid(format!("{what}: {}", errors.join(". ")))
    })
}

/// Names of the object for an interface: a readable one where it can be had, and one that no
/// other interface has.
fn names(interface: &str) -> Vec<String> {
    let readable = interface.to_lowercase();
    let word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric());
    let plain = readable.len() <= MAX_NAME && readable.split('.').all(word);
    let stem = readable.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let stem: String = stem.chars().take(MAX_NAME / 2).collect();
    let hash = Digest::of(interface.as_bytes()).short();
    let unique = format!("{}-{hash}", stem.trim_matches('-'));
    let unique = unique.trim_start_matches('-').to_owned();
    if plain { vec![readable, unique] } else { vec![unique] }
}

/// What a registration takes.
enum Plan {
    /// It is there already.
    Nothing,
    Write(Resource, Expected),
}

impl Inner {
    /// Adds to one mapping.
    async fn add(
        &self,
        namespace: &str,
        spec: ServiceNameMappingSpec,
        deadline: Instant,
    ) -> Result<(), MappingError> {
        let _turn = self.turn.lock().await;
        let mut changes = self.index.changes();
        loop {
            changes.mark_unchanged();
            let (resource, expected) = match self.plan(&self.index.snapshot(), namespace, &spec)? {
                Plan::Nothing => return Ok(()),
                Plan::Write(resource, expected) => (resource, expected),
            };
            let key = resource.id.key();
            match self.store.put(resource, expected).await {
                Ok(revision) => {
                    // So that the next one begins with it.
                    let seen = |snapshot: &Snapshot| {
                        let stored = snapshot.kind(self.kind).get(key.as_str());
                        stored.is_some_and(|stored| stored.revision >= revision)
                    };
                    while !seen(&self.index.snapshot())
                        && matches!(timeout_at(deadline, changes.changed()).await, Ok(Ok(())))
                    {
                    }
                    return Ok(());
                }
                Err(StoreError::Conflict { .. }) if Instant::now() < deadline => {
                    let until = deadline.min(Instant::now() + PAUSE);
                    // Whichever comes first.
                    let _ = timeout_at(until, changes.changed()).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// What to write where, as things stand.
    fn plan(
        &self,
        snapshot: &Snapshot,
        namespace: &str,
        spec: &ServiceNameMappingSpec,
    ) -> Result<Plan, MappingError> {
        if !snapshot.listed {
            return Err(MappingError::Unlisted);
        }
        let mut occupied = None;
        for name in names(&spec.interface) {
            let id = ResourceId { kind: self.kind, namespace: namespace.into(), name };
            let Some(stored) = snapshot.kind(self.kind).get(id.key().as_str()) else {
                let label = (MANAGED_BY.0.into(), MANAGED_BY.1.into());
                let resource = Resource {
                    id,
                    labels: BTreeMap::from([label]),
                    annotations: BTreeMap::new(),
                    created: 0,
                    spec: Arc::new(spec.clone()),
                };
                return Ok(Plan::Write(resource, Expected::Absent));
            };
            let held: &dyn Any = &*stored.resource.spec;
            let held = held.downcast_ref::<ServiceNameMappingSpec>();
            let Some(held) = held.filter(|held| held.interface == spec.interface) else {
                occupied = Some(MappingError::Occupied { id, why: "of another interface" });
                continue;
            };
            if held.applications.is_superset(&spec.applications) {
                return Ok(Plan::Nothing);
            }
            if !stored.accepted {
                // What is in force is not what is written there, and nobody's work is undone.
                let why = "written with an error, so nothing can be added to it";
                occupied = Some(MappingError::Occupied { id, why });
                continue;
            }
            let applications = held.applications.union(&spec.applications).cloned().collect();
            let both = ServiceNameMappingSpec { applications, ..spec.clone() };
            let resource = Resource { spec: Arc::new(both), ..stored.resource.clone() };
            return Ok(Plan::Write(resource, Expected::Revision(stored.revision)));
        }
        // There are names, so there was a reason.
        Err(occupied.unwrap_or(MappingError::Unlisted))
    }
}

#[tonic::async_trait]
impl ServiceNameMappingService for MappingService {
    async fn register_service_app_mapping(
        &self,
        request: Request<ServiceMappingRequest>,
    ) -> Result<Response<ServiceMappingResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let ServiceMappingRequest { namespace, application_name, interface_names } =
            request.into_inner();
        let own = caller.identity.namespace.clone();
        // Who names none speaks of its own.
        let registered = if namespace.is_empty() || namespace == own {
            self.register(&own, &application_name, &interface_names).await
        } else {
            let own = caller.identity.to_string();
            let asked = namespace.chars().filter(|c| !c.is_control()).take(253).collect();
            Err(MappingError::Namespace { own, asked })
        };
        // As on that wire, a refusal is an answer that says so.
        Ok(Response::new(match registered {
            Ok(()) => {
                let count = interface_names.len();
                info!(client = %caller.identity, application = ?application_name, count, "registered");
                ServiceMappingResponse { success: true, message: String::new() }
            }
            Err(error) => {
                warn!(client = %caller.identity, %error, "a registration is refused");
                ServiceMappingResponse { success: false, message: error.to_string() }
            }
        }))
    }
}

impl std::fmt::Debug for MappingService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MappingService")
    }
}

#[cfg(test)]
mod tests;
