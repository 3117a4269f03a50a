//! The Lease in the API server.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};

use super::candidate::{Claim, Record, Written};

/// The longest duration of a holder that is believed; more is taken for a mistake that would
/// leave nobody in the lead.
const LONGEST: Duration = Duration::from_secs(3600);

/// Reads and writes one Lease.
pub(super) struct Leases {
    api: Api<Lease>,
    name: String,
    /// As it was last read or written: a write keeps what others put there.
    last: Option<Lease>,
}

impl Leases {
    pub(super) fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), name: name.to_owned(), last: None }
    }

    /// The Lease now, straight from the store, `None` when there is none; `usual` is the
    /// duration where it says none.
    pub(super) async fn read(&mut self, usual: Duration) -> Result<Option<Record>, kube::Error> {
        self.last = self.api.get_opt(&self.name).await?;
        Ok(self.last.as_ref().map(|lease| record(lease, usual)))
    }

    /// Carries out `claim`. The error goes with [`Written::Failed`] alone.
    pub(super) async fn write(&mut self, claim: &Claim) -> (Written, Option<kube::Error>) {
        let options =
            PostParams { field_manager: Some("rulecast".into()), ..PostParams::default() };
        let lease = self.lease(claim);
        let answer = match &claim.replaces {
            None => self.api.create(&options, &lease).await,
            Some(_) => self.api.replace(&self.name, &options, &lease).await,
        };
        match answer {
            Ok(lease) => {
                let ObjectMeta { uid, resource_version, .. } = lease.metadata.clone();
                self.last = Some(lease);
                let (uid, version) =
                    (uid.unwrap_or_default(), resource_version.unwrap_or_default());
                (Written::Done { uid, version }, None)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => (Written::Conflict, None),
            // Where one was to be made, it is the namespace that is missing.
            Err(kube::Error::Api(status)) if status.code == 404 && claim.replaces.is_some() => {
                (Written::Missing, None)
            }
            Err(error) => (Written::Failed, Some(error)),
        }
    }

    fn lease(&self, claim: &Claim) -> Lease {
        let known = self.last.as_ref().filter(|_| claim.replaces.is_some());
        let metadata = match known {
            Some(lease) => ObjectMeta {
                resource_version: claim.replaces.clone(),
                managed_fields: None,
                ..lease.metadata.clone()
            },
            None => ObjectMeta {
                name: Some(self.name.clone()),
                resource_version: claim.replaces.clone(),
                ..ObjectMeta::default()
            },
        };
        let spec = known.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        // For people; no candidate compares these times with its own clock.
        let now = MicroTime(Timestamp::now());
        let acquire_time = if claim.acquires { Some(now.clone()) } else { spec.acquire_time };
        Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(claim.holder.clone()),
                lease_duration_seconds: Some(whole_seconds(claim.duration)),
                lease_transitions: Some(claim.transitions),
                acquire_time,
                renew_time: Some(now),
                ..spec
            }),
        }
    }
}

fn whole_seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX).max(1)
}

fn record(lease: &Lease, usual: Duration) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok());
    let duration = seconds.filter(|s| *s > 0).map_or(usual, Duration::from_secs);
    Record {
        uid: lease.metadata.uid.clone().unwrap_or_default(),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
        holder: spec.holder_identity.unwrap_or_default(),
        duration: duration.min(LONGEST),
        transitions: spec.lease_transitions.unwrap_or(0).max(0),
    }
}
