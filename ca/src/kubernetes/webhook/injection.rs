//! The patch for a pod: pure, over JSON as it came, so that fields which this version
//! does not know are neither lost nor judged.
//!
//! What the pod's author wrote wins. A variable, a volume or a mount that is there by
//! its name or place stays as it is, and nothing is doubled; so a second run over the
//! same pod, after another webhook or from a dumped manifest, adds only what is new.

use std::fmt;

use json_patch::{AddOperation, PatchOperation, jsonptr::PointerBuf};
use serde_json::{Map, Value, json};

use super::form::{Form, Mount, Text};

/// Annotation that tells people which version changed a pod.
pub const ANNOTATION: &str = "rulecast.io/injected";
/// The kubelet's copy of a pod that it runs from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Warnings to an author at a time; the API server cuts long lists.
const MAX_WARNINGS: usize = 8;

/// What becomes of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Injection {
    /// To be applied in order; empty: the pod stays as it is.
    pub operations: Vec<PatchOperation>,
    /// For the pod's author, at most a few.
    pub warnings: Vec<String>,
}

/// JSON that is no pod: names the field, shows nothing of its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path} is no {expected}")]
pub struct NotAPod {
    path: String,
    expected: &'static str,
}

/// What `pod`, which opted in, needs of `form`.
pub fn inject(pod: &Value, form: &Form) -> Result<Injection, NotAPod> {
    let pod = object(pod, || "the object".into())?;
    let metadata = member(pod, "metadata", "metadata")?;
    let labels = entry(metadata, "labels", "metadata.labels")?;
    let annotations = entry(metadata, "annotations", "metadata.annotations")?;
    let opted_out = text(labels, form.label) == Some("false");
    // A mirror pod may not use tokens and ConfigMaps: the API server would refuse it.
    let mirror = annotations.is_some_and(|annotations| annotations.contains_key(MIRROR));
    if opted_out || mirror {
        return Ok(Injection::default());
    }

    let spec = member(pod, "spec", "spec")?;
    let volumes = list(spec, "volumes", || "spec.volumes".into())?;
    let mut run = Run { form, injection: Injection::default(), unsaid: 0, used: Vec::new() };
    run.used.resize(form.mounts.len(), false);
    let application = application(pod);
    for kind in ["initContainers", "containers"] {
        let containers = list(spec, kind, || format!("spec.{kind}"))?;
        for (n, container) in containers.unwrap_or_default().iter().enumerate() {
            let place = Place { kind, n };
            run.container(object(container, || place.to_string())?, &place, &application)?;
        }
    }
    run.volumes(volumes)?;
    if !run.injection.operations.is_empty() {
        run.annotate(annotations);
    }
    if run.unsaid > 0 {
        run.injection.warnings.push(format!("and {} warnings more", run.unsaid));
    }
    Ok(run.injection)
}

/// A container, as its field is written.
struct Place {
    kind: &'static str,
    n: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spec.{}[{}]", self.kind, self.n)
    }
}

struct Run<'a> {
    form: &'a Form,
    injection: Injection,
    /// Warnings that found no room.
    unsaid: usize,
    /// Which of the form's volumes some container mounts.
    used: Vec<bool>,
}

impl Run<'_> {
    fn container(
        &mut self,
        container: &Map<String, Value>,
        place: &Place,
        application: &str,
    ) -> Result<(), NotAPod> {
        let within = |key: &'static str| list(container, key, || format!("{place}.{key}"));
        let mounts = within("volumeMounts")?;
        let devices = within("volumeDevices")?;
        let mut added = Vec::new();
        for (n, mount) in self.form.mounts.iter().enumerate() {
            let (there, device) = (mounts.unwrap_or_default(), devices.unwrap_or_default());
            let by_hand = there.iter().find(|there| takes(there, "mountPath", mount));
            self.used[n] |= there.iter().any(|there| value(there, "name") == Some(mount.volume));
            if by_hand.is_none() && !device.iter().any(|there| takes(there, "devicePath", mount)) {
                self.used[n] = true;
                added.push(json!({
                    "name": mount.volume, "mountPath": mount.path, "readOnly": true,
                }));
            } else if by_hand.and_then(|there| value(there, "name")) != Some(mount.volume) {
                self.warn(format!(
                    "{place} already mounts something at {}: left as it is, {} is not mounted",
                    mount.path, mount.volume
                ));
            }
        }
        self.append(&["spec", place.kind, &place.n.to_string(), "volumeMounts"], mounts, added);

        let variables = within("env")?;
        let mut added = Vec::new();
        for variable in &self.form.variables {
            let mut there = variables.unwrap_or_default().iter();
            if there.any(|there| value(there, "name") == Some(variable.name)) {
                continue;
            }
            added.push(match &variable.value {
                Text::Fixed(value) => json!({ "name": variable.name, "value": value }),
                Text::Application => json!({ "name": variable.name, "value": application }),
                Text::Field(path) => json!({
                    "name": variable.name, "valueFrom": { "fieldRef": { "fieldPath": path } },
                }),
            });
        }
        self.append(&["spec", place.kind, &place.n.to_string(), "env"], variables, added);
        Ok(())
    }

    /// Adds the volumes that containers mount and the pod does not have.
    fn volumes(&mut self, volumes: Option<&[Value]>) -> Result<(), NotAPod> {
        let mut added = Vec::new();
        for (mount, used) in self.form.mounts.iter().zip(self.used.clone()) {
            let mut there = volumes.unwrap_or_default().iter();
            match there.find(|there| value(there, "name") == Some(mount.volume)) {
                None if used => {
                    let mut volume = object(&mount.source, || mount.volume.into())?.clone();
                    volume.insert("name".into(), mount.volume.into());
                    added.push(Value::Object(volume));
                }
                Some(there) if !holds(there, &mount.source) => self.warn(format!(
                    "volume {} is not as the webhook would make it: left as it is",
                    mount.volume
                )),
                _ => {}
            }
        }
        self.append(&["spec", "volumes"], volumes, added);
        Ok(())
    }

    fn annotate(&mut self, annotations: Option<&Map<String, Value>>) {
        let version = env!("CARGO_PKG_VERSION");
        match annotations {
            Some(there) if there.contains_key(ANNOTATION) => {}
            Some(_) => self.add(&["metadata", "annotations", ANNOTATION], version.into()),
            None => self.add(&["metadata", "annotations"], json!({ ANNOTATION: version })),
        }
    }

    /// Adds `items` to the list at `path`, which may be missing.
    fn append(&mut self, path: &[&str], list: Option<&[Value]>, items: Vec<Value>) {
        if items.is_empty() {
            return;
        }
        if list.is_none() {
            return self.add(path, items.into());
        }
        let end = [path, &["-"]].concat();
        for item in items {
            self.add(&end, item);
        }
    }

    fn add(&mut self, path: &[&str], value: Value) {
        let path = PointerBuf::from_tokens(path.iter().copied());
        self.injection.operations.push(PatchOperation::Add(AddOperation { path, value }));
    }

    fn warn(&mut self, warning: String) {
        if self.injection.warnings.len() < MAX_WARNINGS {
            self.injection.warnings.push(warning);
        } else {
            self.unsaid += 1;
        }
    }
}

/// Whether an author's mount or device stands where `mount` would, or in it.
fn takes(there: &Value, key: &str, mount: &Mount) -> bool {
    let Some(path) = value(there, key).map(components) else { return false };
    path.starts_with(&components(mount.path))
        || mount.above.is_some_and(|above| path == components(above))
}

/// The parts of a path, without what says nothing.
fn components(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts
}

/// Whether `there` has everything of `wanted`; what a server filled in besides is no difference.
fn holds(there: &Value, wanted: &Value) -> bool {
    match (there, wanted) {
        (Value::Object(there), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| there.get(key).is_some_and(|there| holds(there, wanted))),
        (Value::Array(there), Value::Array(wanted)) => {
            there.len() == wanted.len()
                && there.iter().zip(wanted).all(|(there, wanted)| holds(there, wanted))
        }
        _ => there == wanted,
    }
}

/// The application's name: the label `app.kubernetes.io/name`, else the label `app`, else
/// the workload that the pod is of (Deployment, StatefulSet, DaemonSet, Job, CronJob, …),
/// else the pod's own name. So it is the same for all pods of a workload.
pub fn application(pod: &Map<String, Value>) -> String {
    let Some(metadata) = pod.get("metadata").and_then(Value::as_object) else {
        return String::new();
    };
    let labels = metadata.get("labels").and_then(Value::as_object);
    let label = |name| text(labels, name).filter(|value| !value.is_empty());
    if let Some(name) = label("app.kubernetes.io/name").or_else(|| label("app")) {
        return name.into();
    }
    let owners = metadata.get("ownerReferences").and_then(Value::as_array);
    let controller = owners.into_iter().flatten().find(|owner| owner["controller"] == true);
    if let Some((owner, name)) = controller.and_then(|o| Some((o, value(o, "name")?))) {
        return match value(owner, "kind") {
            // A Deployment names its ReplicaSets `<name>-<hash>`.
            Some("ReplicaSet") => label("pod-template-hash")
                .and_then(|hash| name.strip_suffix(hash)?.strip_suffix('-'))
                .unwrap_or(name)
                .into(),
            // A CronJob names its Jobs `<name>-<minutes or seconds since 1970>`.
            Some("Job") => name
                .rsplit_once('-')
                .filter(|(_, time)| {
                    (8..=10).contains(&time.len()) && time.bytes().all(|b| b.is_ascii_digit())
                })
                .map_or(name, |(name, _)| name)
                .into(),
            _ => name.into(),
        };
    }
    let own = |key| text(Some(metadata), key).filter(|name| !name.is_empty());
    own("name")
        .or_else(|| own("generateName").map(|name| name.trim_end_matches('-')))
        .unwrap_or_default()
        .into()
}

fn object(value: &Value, path: impl FnOnce() -> String) -> Result<&Map<String, Value>, NotAPod> {
    value.as_object().ok_or_else(|| NotAPod { path: path(), expected: "object" })
}

fn member<'a>(
    parent: &'a Map<String, Value>,
    key: &str,
    path: &'static str,
) -> Result<&'a Map<String, Value>, NotAPod> {
    object(parent.get(key).unwrap_or(&Value::Null), || path.into())
}

/// As [`member`], but it may be missing.
fn entry<'a>(
    parent: &'a Map<String, Value>,
    key: &str,
    path: &'static str,
) -> Result<Option<&'a Map<String, Value>>, NotAPod> {
    match parent.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => object(value, || path.into()).map(Some),
    }
}

fn list<'a>(
    parent: &'a Map<String, Value>,
    key: &str,
    path: impl FnOnce() -> String,
) -> Result<Option<&'a [Value]>, NotAPod> {
    match parent.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(_) => Err(NotAPod { path: path(), expected: "list" }),
    }
}

fn text<'a>(parent: Option<&'a Map<String, Value>>, key: &str) -> Option<&'a str> {
    parent?.get(key)?.as_str()
}

fn value<'a>(parent: &'a Value, key: &str) -> Option<&'a str> {
    parent.get(key)?.as_str()
}

#[cfg(test)]
mod tests;
