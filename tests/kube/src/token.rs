//! Service accounts and their tokens.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::{
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
        core::v1::{Namespace, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Error, api::PostParams};

use crate::{Cluster, access::Credential};

impl Cluster {
    /// A token of a service account for an audience, by the server's TokenRequest; bound to
    /// a pod's name and UID, if given. It is good for at least 600 seconds, whatever is
    /// asked for. Makes the account and its namespace when they are missing.
    pub async fn token(
        &self,
        namespace: &str,
        account: &str,
        audience: &str,
        pod: Option<(&str, &str)>,
        seconds: u32,
    ) -> Result<String> {
        self.request_token(namespace, account, vec![audience.to_owned()], pod, seconds).await
    }

    /// A kubeconfig with an account's token for an hour. The token lies in the file `token`
    /// beside it, which a test may replace: see [`Cluster::renew_token`].
    pub async fn kubeconfig_for(&self, namespace: &str, account: &str) -> Result<PathBuf> {
        let folder = self.access().client_folder(&format!("{namespace}-{account}"))?;
        let token = folder.join("token");
        fs::write(&token, self.request_token(namespace, account, Vec::new(), None, 3600).await?)?;
        let kubeconfig = folder.join("kubeconfig");
        let (url, user) = (self.url(), format!("{namespace}-{account}"));
        let credential = Credential::File(&token);
        self.access().write_kubeconfig(&kubeconfig, &url, &user, &credential)?;
        Ok(kubeconfig)
    }

    /// Puts a new token of the account into the file beside a kubeconfig from
    /// [`Cluster::kubeconfig_for`], in one step.
    pub async fn renew_token(
        &self,
        kubeconfig: &std::path::Path,
        namespace: &str,
        account: &str,
    ) -> Result<()> {
        let token = self.request_token(namespace, account, Vec::new(), None, 3600).await?;
        let fresh = kubeconfig.with_file_name("token.new");
        fs::write(&fresh, token)?;
        Ok(fs::rename(fresh, kubeconfig.with_file_name("token"))?)
    }

    /// Without audiences, the token is for the server itself.
    async fn request_token(
        &self,
        namespace: &str,
        account: &str,
        audiences: Vec<String>,
        pod: Option<(&str, &str)>,
        seconds: u32,
    ) -> Result<String> {
        self.ensure_account(namespace, account).await?;
        let bound_object_ref = pod.map(|(name, uid)| BoundObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            name: Some(name.into()),
            uid: Some(uid.into()),
        });
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences,
                bound_object_ref,
                expiration_seconds: Some(seconds.max(600).into()),
            },
            ..TokenRequest::default()
        };
        let api: Api<ServiceAccount> = Api::namespaced(self.client(), namespace);
        let answer = api.create_token_request(account, &PostParams::default(), &request).await;
        let answer = answer.with_context(|| format!("a token for {namespace}/{account}"))?;
        Ok(answer.status.context("no token in the answer")?.token)
    }

    async fn ensure_account(&self, namespace: &str, account: &str) -> Result<()> {
        let named = |name: &str| ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
        let post = PostParams::default();
        let api: Api<Namespace> = Api::all(self.client());
        if api.get_opt(namespace).await?.is_none() {
            let object = Namespace { metadata: named(namespace), ..Namespace::default() };
            there(api.create(&post, &object).await)?;
        }
        let api: Api<ServiceAccount> = Api::namespaced(self.client(), namespace);
        if api.get_opt(account).await?.is_none() {
            let object = ServiceAccount { metadata: named(account), ..ServiceAccount::default() };
            there(api.create(&post, &object).await)?;
        }
        Ok(())
    }
}

/// Another may have made it first.
fn there<T>(made: kube::Result<T>) -> kube::Result<()> {
    match made {
        Err(Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        made => made.map(drop),
    }
}
