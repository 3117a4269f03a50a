//! Writes to objects.

use std::{sync::Arc, time::Duration};

use kube::core::{
    Request,
    params::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions},
};
use rulecast_api::{Kinds, Resource, ResourceId, manifest::valid_name};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::{
    api::{Api, named, path},
    fault::{Fault, Why},
    hub::Hub,
    object::{Content, LAST_APPLIED, Object, Reading, Unreadable, read},
};
use crate::store::{Expected, StoreError, digest};

/// Who owns the status, in `managedFields`.
pub(super) const FIELD_MANAGER: &str = "rulecast-dds";
/// Somebody else is faster so often before a writer is told.
const ATTEMPTS: usize = 5;
/// How long a write waits to be seen by the watch; then it is told as done all the same.
const SEEN: Duration = Duration::from_secs(10);

/// Writes objects, and returns when the watch has seen it.
#[derive(Clone)]
pub(super) struct Writer {
    pub(super) kinds: Kinds,
    pub(super) api: Api,
    pub(super) hub: Arc<Hub>,
}

impl Writer {
    pub(super) async fn put(
        self,
        resource: Resource,
        expected: Expected,
    ) -> Result<i64, StoreError> {
        let id = &resource.id;
        named_well(id)?;
        // Whoever writes a rule does not say its age.
        let ageless = |resource: &Resource| digest(&Resource { created: 0, ..resource.clone() });
        let wanted = ageless(&resource);
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            let found = self.get(id).await?;
            let revision = match &found {
                Some((_, reading)) => Some(self.kept(reading).await),
                None => None,
            };
            expect(id, expected, revision)?;
            let good = |reading: &Reading| match &reading.content {
                Content::Good(there, _) => ageless(there) == wanted,
                _ => false,
            };
            let (verb, request) = match (&found, revision) {
                (Some((_, reading)), Some(revision)) if good(reading) => return Ok(revision),
                (Some((object, _)), _) => ("update", {
                    let data = replaced(object, &resource);
                    Request::new(path(id.kind, Some(&id.namespace))).replace(
                        &id.name,
                        &PostParams::default(),
                        data.to_string().into_bytes(),
                    )
                }),
                (None, _) => ("create", {
                    let data = created(&resource);
                    Request::new(path(id.kind, Some(&id.namespace)))
                        .create(&PostParams::default(), data.to_string().into_bytes())
                }),
            };
            match self.api.answer::<Object>(verb, &named(id), request).await {
                Ok(object) => {
                    let reading = self.reading(verb, id, object)?;
                    return Ok(self.kept(&reading).await);
                }
                Err(Fault { why: Why::Conflict(said), .. }) => last = said,
                Err(fault) => return Err(fault.into_error(id)),
            }
        }
        Err(StoreError::Conflict { id: id.clone(), expected: "as it was read".into(), found: last })
    }

    pub(super) async fn delete(
        self,
        id: ResourceId,
        expected: Expected,
    ) -> Result<i64, StoreError> {
        named_well(&id)?;
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            let Some((_, reading)) = self.get(&id).await? else {
                return match expected {
                    Expected::Revision(_) => expect(&id, expected, None).map(|()| 0),
                    _ => Ok(self.hub.read(|state| state.revision())),
                };
            };
            let revision = self.kept(&reading).await;
            expect(&id, expected, Some(revision))?;
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: Some(reading.version.uid.to_string()),
                    resource_version: Some(reading.revision.to_string()),
                }),
                ..DeleteParams::default()
            };
            let request =
                Request::new(path(id.kind, Some(&id.namespace))).delete(&id.name, &params);
            match self.api.answer::<Value>("delete", &named(&id), request).await {
                // With finalizers it stays for a while, and is answered as it stands.
                Ok(answer) if answer.get("kind").and_then(Value::as_str) == Some(id.kind.name) => {
                    let stays = serde_json::from_value(answer).map_err(|error| {
                        Fault::failed("delete", named(&id), error.to_string()).into_error(&id)
                    })?;
                    return Ok(self.reading("delete", &id, stays)?.revision);
                }
                Ok(_) => return Ok(self.gone(&id, reading.revision).await),
                Err(Fault { why: Why::Missing, .. }) => {}
                Err(Fault { why: Why::Conflict(said), .. }) => last = said,
                Err(fault) => return Err(fault.into_error(&id)),
            }
        }
        Err(StoreError::Conflict { id, expected: "as it was read".into(), found: last })
    }
}

impl Writer {
    /// The status of an object, by server-side apply: fields of others stay theirs. A conflict
    /// when the object was written since it was seen last.
    pub(super) async fn write_status(
        self,
        id: ResourceId,
        status: Value,
    ) -> Result<(), StoreError> {
        named_well(&id)?;
        let absent =
            |id| Err(StoreError::Conflict { id, expected: "there".into(), found: "absent".into() });
        let Some(seen) = self.hub.read(|state| state.seen(&id)) else { return absent(id) };
        let patch = json!({
            "apiVersion": id.kind.api_version,
            "kind": id.kind.name,
            "metadata": {
                "name": id.name,
                "namespace": id.namespace,
                // Neither on another object of that name, nor on a writing not seen yet. (A
                // uid here would be no condition.)
                "resourceVersion": seen.newest.to_string(),
            },
            "status": status,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let request = Request::new(path(id.kind, Some(&id.namespace))).patch_subresource(
            "status",
            &id.name,
            &params,
            &Patch::Apply(patch),
        );
        match self.api.answer::<Object>("patch", &status_of(&id), request).await {
            Ok(object) => {
                let reading = self.reading("patch", &id, object)?;
                if let Some(status) = &reading.status {
                    self.hub.with(|state| state.note_status(&id, status, reading.revision));
                }
                Ok(())
            }
            Err(Fault { why: Why::Missing, .. }) => absent(id),
            Err(fault) => Err(fault.into_error(&id)),
        }
    }

    /// An object as it is now, whole and as read.
    async fn get(&self, id: &ResourceId) -> Result<Option<(Value, Reading)>, StoreError> {
        let request =
            Request::new(path(id.kind, Some(&id.namespace))).get(&id.name, &GetParams::default());
        match self.api.answer::<Value>("get", &named(id), request).await {
            Ok(whole) => {
                let object = Object::deserialize(&whole).map_err(|error| {
                    Fault::failed("get", named(id), error.to_string()).into_error(id)
                })?;
                let reading = self.reading("get", id, object)?;
                Ok(Some((whole, reading)))
            }
            Err(Fault { why: Why::Missing, .. }) => Ok(None),
            Err(fault) => Err(fault.into_error(id)),
        }
    }

    fn reading(
        &self,
        verb: &'static str,
        id: &ResourceId,
        object: Object,
    ) -> Result<Reading, StoreError> {
        read(self.kinds, id.kind, object)
            .map_err(|error: Unreadable| Fault::unreadable(verb, named(id), &error).into_error(id))
    }

    /// The revision at which the content of an object came, once the watch has seen it.
    async fn kept(&self, reading: &Reading) -> i64 {
        let id = &reading.id;
        let seen = self.until(|hub| {
            hub.read(|state| match state.seen(id) {
                Some(seen) if seen.revision >= reading.revision => Some(seen.stored),
                _ => state.removed(id, reading.revision - 1).map(|_| None),
            })
        });
        match (seen.await.flatten(), &reading.content) {
            (Some((revision, seen)), Content::Good(_, digest)) if seen == *digest => revision,
            // What is in force instead of an object that is refused.
            (Some((revision, _)), Content::Bad(..)) => revision,
            _ => reading.revision,
        }
    }

    /// When an object went that was there at a revision.
    async fn gone(&self, id: &ResourceId, after: i64) -> i64 {
        let removed = self.until(|hub| hub.read(|state| state.removed(id, after))).await;
        removed.unwrap_or_else(|| self.hub.read(|state| state.revision()))
    }

    /// Waits for something to be seen; `None`: not in time.
    async fn until<T>(&self, look: impl Fn(&Hub) -> Option<T>) -> Option<T> {
        let mut changes = self.hub.changes();
        let latest = Instant::now() + SEEN;
        loop {
            changes.mark_unchanged();
            if let Some(found) = look(&self.hub) {
                return Some(found);
            }
            if self.hub.ended()
                || !matches!(timeout_at(latest, changes.changed()).await, Ok(Ok(())))
            {
                return None;
            }
        }
    }
}

/// A name that no object can have would become another path.
fn named_well(id: &ResourceId) -> Result<(), StoreError> {
    if valid_name(&id.name) && valid_name(&id.namespace) {
        return Ok(());
    }
    Err(StoreError::Invalid { id: id.clone(), reason: "no object can have this name".into() })
}

fn status_of(id: &ResourceId) -> String {
    let name = named(id);
    match name.split_once(' ') {
        Some((kind, name)) => format!("{kind}/status {name}"),
        None => name,
    }
}

fn expect(id: &ResourceId, expected: Expected, found: Option<i64>) -> Result<(), StoreError> {
    let fits = match expected {
        Expected::Any => true,
        Expected::Absent => found.is_none(),
        Expected::Revision(revision) => found == Some(revision),
    };
    if fits {
        return Ok(());
    }
    let shown = |revision| format!("at revision {revision}");
    Err(StoreError::Conflict {
        id: id.clone(),
        expected: match expected {
            Expected::Revision(revision) => shown(revision),
            _ => "absent".into(),
        },
        found: found.map_or_else(|| "absent".into(), shown),
    })
}

fn created(resource: &Resource) -> Value {
    json!({
        "apiVersion": resource.id.kind.api_version,
        "kind": resource.id.kind.name,
        "metadata": {
            "name": resource.id.name,
            "namespace": resource.id.namespace,
            "labels": resource.labels,
            "annotations": resource.annotations,
        },
        "spec": resource.spec.to_json(),
    })
}

/// An object with another rule in it. What belongs to nobody's rule stays: owners,
/// finalizers, and what `kubectl apply` needs to go on.
fn replaced(object: &Value, resource: &Resource) -> Value {
    let mut object = object.clone();
    let mut annotations = json!(resource.annotations);
    let noted = &object["metadata"]["annotations"][LAST_APPLIED];
    if !noted.is_null() {
        annotations[LAST_APPLIED] = noted.clone();
    }
    object["metadata"]["labels"] = json!(resource.labels);
    object["metadata"]["annotations"] = annotations;
    object["spec"] = resource.spec.to_json();
    object
}
