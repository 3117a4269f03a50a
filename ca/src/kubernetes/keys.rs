//! The authority in a Secret.
//!
//! The data of the Secret has the names of the files of an authority's folder, so that the
//! one can be made from the other. It is changed by compare-and-swap alone: replicas that
//! start together end with one root, and of two that renew the intermediate one reads what
//! the other wrote. What is damaged is refused and left as it is.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use rulecast_api::Code;
use sha2::{Digest as _, Sha256};
use tracing::{info, warn};
use zeroize::Zeroizing;

use super::{FIELD_MANAGER, MANAGED_BY, api_error, bundles, in_time};
use crate::{
    Authority, CaError,
    authority::parts::{ABOUT, INTERMEDIATE, Parts, ROOT, ROOT_KEY, Where},
    trouble::Trouble,
};

/// Type of the Secret when it is made here; one of another type is used as well.
pub const SECRET_TYPE: &str = "rulecast.io/authority";

/// How often others may change the Secret between our reading and our writing of it.
const ATTEMPTS: usize = 5;
/// How long one call to the API server may take.
const CALL: Duration = Duration::from_secs(5);

const REMEDY: &str = "restore the Secret from a backup; only where no certificate of this \
     authority is in use, delete it and restart, which makes a new authority";

/// The Secret of an authority.
#[derive(Clone, Debug)]
pub struct AuthoritySecret {
    api: Api<Secret>,
    bundles: Api<ConfigMap>,
    namespace: String,
    name: String,
    trust_domain: String,
    /// The resourceVersion that was read last.
    version: Option<String>,
    /// With the renewal of the intermediate.
    trouble: Trouble,
}

impl AuthoritySecret {
    /// The Secret `name` in `namespace`, of an authority for `trust_domain`.
    pub fn new(client: Client, namespace: &str, name: &str, trust_domain: &str) -> Self {
        Self {
            api: Api::namespaced(client.clone(), namespace),
            bundles: Api::namespaced(client, namespace),
            namespace: namespace.into(),
            name: name.into(),
            trust_domain: trust_domain.into(),
            version: None,
            trouble: Trouble::default(),
        }
    }

    fn text(&self) -> String {
        format!("Secret {}/{}", self.namespace, self.name)
    }

    /// Opens the authority, and makes it first when there is no Secret and no root is
    /// published yet. An
    /// intermediate past half of its time is renewed if that can be done.
    ///
    /// [`Code::AuthorityUnreachable`]: the API server does not answer, or does not
    /// allow it; may succeed later. [`Code::AuthorityInvalid`]: what is there is
    /// damaged. [`Code::ConfigInvalid`]: it is of another trust domain.
    pub async fn open(&mut self) -> Result<Authority, CaError> {
        for _ in 0..ATTEMPTS {
            match self.get().await? {
                Some(secret) => {
                    if let Some(authority) = self.take(secret).await? {
                        return Ok(authority);
                    }
                }
                None if self.is_trusted().await? => {
                    // Another replica may have made the Secret, and published it, meanwhile.
                    if self.get().await?.is_none() {
                        return Err(CaError::authority(format!(
                            "{} is gone, and ConfigMap {}/{} still publishes its roots; no new \
                             root is made, since nobody would trust it: restore the Secret from a \
                             backup, or delete the ConfigMap to begin anew",
                            self.text(),
                            self.namespace,
                            bundles::CONFIG_MAP,
                        )));
                    }
                }
                None => {
                    if let Some(authority) = self.make().await? {
                        return Ok(authority);
                    }
                }
            }
        }
        Err(self.contended())
    }

    /// Whether roots are published where the authority runs.
    async fn is_trusted(&self) -> Result<bool, CaError> {
        // Listed, since that is what the authority may do with it anyway.
        let only = ListParams::default().fields(&format!("metadata.name={}", bundles::CONFIG_MAP));
        let maps = in_time(CALL, self.bundles.list(&only)).await.map_err(|e| {
            let what = format!("ConfigMap {}/{}", self.namespace, bundles::CONFIG_MAP);
            api_error(&format!("{what} cannot be read"), &e)
        })?;
        let has_roots =
            |map: &ConfigMap| map.data.as_ref().is_some_and(|d| d.contains_key(bundles::ROOTS));
        Ok(maps.iter().any(has_roots))
    }

    /// What is in the Secret now, if that is something else than `held`. A Secret
    /// that is gone is an error: whoever runs goes on with what it holds, and no new
    /// root is made.
    pub async fn look(&mut self, held: &Authority) -> Result<Option<Authority>, CaError> {
        for _ in 0..ATTEMPTS {
            let Some(secret) = self.get().await? else {
                return Err(CaError::authority(format!(
                    "{} is gone; this process issues on with what it holds, the next one that \
                     starts would make a new root: restore the Secret from a backup",
                    self.text()
                )));
            };
            if secret.metadata.resource_version == self.version && !held.is_due()? {
                return Ok(None);
            }
            if let Some(authority) = self.take(secret).await? {
                let other_root = authority.bundle().roots() != held.bundle().roots();
                if other_root {
                    warn!(
                        audit = true,
                        root = fingerprint(&authority),
                        "{} holds another root than before; it is used from now on",
                        self.text()
                    );
                }
                return Ok((!authority.is_same(held)).then_some(authority));
            }
        }
        Err(self.contended())
    }

    async fn get(&self) -> Result<Option<Secret>, CaError> {
        in_time(CALL, self.api.get_opt(&self.name))
            .await
            .map_err(|e| api_error(&format!("{} cannot be read", self.text()), &e))
    }

    /// `None`: somebody else made it meanwhile.
    async fn make(&mut self) -> Result<Option<Authority>, CaError> {
        let parts = Parts::generate(&self.trust_domain)?;
        let authority = self.opened(&parts)?;
        let mut secret = Secret { type_: Some(SECRET_TYPE.into()), ..Secret::default() };
        secret.metadata.name = Some(self.name.clone());
        secret.metadata.namespace = Some(self.namespace.clone());
        secret.metadata.labels = Some([MANAGED_BY].map(|(k, v)| (k.into(), v.into())).into());
        secret.data = Some(data(&parts));
        let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), dry_run: false };
        match in_time(CALL, self.api.create(&params, &secret)).await {
            Ok(made) => {
                self.version = made.metadata.resource_version;
                warn!(
                    audit = true,
                    trust_domain = self.trust_domain,
                    root = fingerprint(&authority),
                    "there was no {}: a new authority was made; keep a backup of it",
                    self.text()
                );
                Ok(Some(authority))
            }
            Err(error) if error.is(409, "AlreadyExists") => Ok(None),
            Err(error) => Err(api_error(&format!("{} cannot be made", self.text()), &error)),
        }
    }

    /// Opens what was read, after renewing what is due. `None`: somebody else
    /// changed it meanwhile.
    async fn take(&mut self, secret: Secret) -> Result<Option<Authority>, CaError> {
        let prefix = format!("{}: ", self.text());
        let place = Where { prefix: &prefix, remedy: REMEDY };
        let parts = parts(&secret, &place)?;
        let version = secret.metadata.resource_version.clone();
        let renewed = match parts.renewed(&place) {
            Ok(None) => {
                let authority = self.opened(&parts)?;
                self.version = version;
                return Ok(Some(authority));
            }
            Ok(Some(renewed)) => self.store(secret, &renewed).await,
            Err(error) => Err(error),
        };
        match renewed {
            Ok(other) => Ok(other),
            // There is half of its time left to mend that.
            Err(error) => {
                let authority = self.opened(&parts)?;
                if self.trouble.is_news(&error) {
                    warn!(%error, "the intermediate is not renewed; the one that is held signs on");
                }
                self.version = version;
                Ok(Some(authority))
            }
        }
    }

    /// `None`: somebody else changed it meanwhile.
    async fn store(
        &mut self,
        mut secret: Secret,
        renewed: &Parts,
    ) -> Result<Option<Authority>, CaError> {
        let authority = self.opened(renewed)?;
        // Its metadata and other data stay as they are, its resourceVersion most of all.
        let text = ByteString(renewed.intermediate.as_bytes().to_vec());
        secret.data.get_or_insert_default().insert(INTERMEDIATE.into(), text);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), dry_run: false };
        match in_time(CALL, self.api.replace(&self.name, &params, &secret)).await {
            Ok(stored) => {
                self.version = stored.metadata.resource_version;
                info!(audit = true, "the intermediate in {} was renewed", self.text());
                Ok(Some(authority))
            }
            Err(error) if error.is(409, "Conflict") => Ok(None),
            Err(error) => Err(api_error(&format!("{} cannot be changed", self.text()), &error)),
        }
    }

    fn opened(&self, parts: &Parts) -> Result<Authority, CaError> {
        let prefix = format!("{}: ", self.text());
        let authority = parts.open(&Where { prefix: &prefix, remedy: REMEDY })?;
        if authority.trust_domain() != self.trust_domain {
            return Err(CaError::new(
                Code::ConfigInvalid,
                format!(
                    "{} holds the authority of trust domain {}, configured is {}; give the one \
                     that it has, or another Secret",
                    self.text(),
                    authority.trust_domain(),
                    self.trust_domain
                ),
            ));
        }
        Ok(authority)
    }

    fn contended(&self) -> CaError {
        CaError::new(
            Code::AuthorityUnreachable,
            format!("{} changes faster than it can be read and written", self.text()),
        )
    }
}

/// SHA-256 of the newest root, lower-case hexadecimal.
fn fingerprint(authority: &Authority) -> Option<String> {
    authority.bundle().roots().last().map(|root| hex::encode(Sha256::digest(root)))
}

fn data(parts: &Parts) -> BTreeMap<String, ByteString> {
    let all = [
        (ABOUT, Some(&parts.about)),
        (ROOT, Some(&parts.root)),
        (ROOT_KEY, parts.root_key.as_ref()),
        (INTERMEDIATE, Some(&parts.intermediate)),
    ];
    all.into_iter()
        .filter_map(|(name, text)| Some((name.into(), ByteString(text?.as_bytes().to_vec()))))
        .collect()
}

fn parts(secret: &Secret, place: &Where<'_>) -> Result<Parts, CaError> {
    let optional = |name: &str| match secret.data.as_ref().and_then(|data| data.get(name)) {
        None => Ok(None),
        Some(bytes) => match std::str::from_utf8(&bytes.0) {
            Ok(text) => Ok(Some(Zeroizing::new(text.to_owned()))),
            Err(_) => Err(place.damaged(name, "it is no text")),
        },
    };
    let required = |name: &str| optional(name)?.ok_or_else(|| place.damaged(name, "it is missing"));
    Ok(Parts {
        about: required(ABOUT)?,
        root: required(ROOT)?,
        root_key: optional(ROOT_KEY)?,
        intermediate: required(INTERMEDIATE)?,
    })
}
