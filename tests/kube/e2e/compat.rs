//! A client of the Dubbo control plane, in another language, in a pod: what its token gets it.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};

use super::{
    python::Python,
    site::{SYSTEM, Site, eventually, rule},
};

const ROUTE: &str = "dubbo.apache.org/v1alpha1/ConditionRoute";

#[tokio::test(flavor = "multi_thread")]
async fn private_a_pod_of_the_old_wire_lives_its_life() {
    let site = Site::start_with(1, 1, &["--compat-dubbo", "true"]).await.expect("installed");
    if let Err(error) = lives_its_life(&site).await {
        panic!("{error:?}\n{}", site.logs());
    }
}

fn keys(held: &[(String, Value)]) -> Vec<&str> {
    held.iter().map(|(key, _)| key.as_str()).collect()
}

async fn lives_its_life(site: &Site) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(site.cluster.client());
    for name in ["shop", "pay"] {
        let namespace = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
        namespaces.create(&PostParams::default(), &namespace).await?;
    }
    let mut client = Python::start().await?;

    // A token of its audience gets a certificate; one of ours does not here.
    let pod = eventually(async || {
        site.create_pod("shop", &json!({ "metadata": { "name": "old" } })).await
    });
    let pod = pod.await?;
    let uid = pod.uid().context("uid")?;
    let authority = site.authority.to_string();
    let ask = async |audience: &str| -> Result<Value> {
        let token = site.cluster.token("shop", "app", audience, Some(("old", &uid)), 1800).await?;
        Ok(json!({
            "do": "identity", "address": authority, "roots": site.bundle("shop").await?,
            "token": token, "kind": "dubbo-ca-token",
        }))
    };
    let refused = client.well(ask("rulecast-ca").await?).await?;
    let message = refused["message"].as_str().unwrap_or_default();
    ensure!(refused.get("success").is_none() && message.starts_with("RC0418"), "{refused}");
    let first = client.well(ask("dubbo-ca").await?).await?;
    ensure!(first["uris"] == json!(["spiffe://kube.test/ns/shop/sa/app"]), "{first}");
    let next = client.well(json!({ "do": "identity", "address": authority })).await?;
    ensure!(next["success"] == true && next["uris"] == first["uris"], "{next}");

    // It declares nothing, and gets the rules of its namespace and the root.
    let rules = site.rules("shop");
    for namespace in ["shop", "pay", SYSTEM] {
        let made = rule(namespace, "orders", "com.Order", "r1");
        site.rules(namespace).create(&PostParams::default(), &made).await?;
    }
    let plane = site.listen[0].to_string();
    client.well(json!({ "do": "observe", "address": plane })).await?;
    client.well(json!({ "do": "send", "type": ROUTE })).await?;
    let both = ["orders/rulecast-system", "orders/shop"];
    loop {
        // The first answer may be of before the last rule.
        let held = client.next("ConditionRoute").await?;
        ensure!(keys(&held).iter().all(|key| both.contains(key)), "{held:?}");
        if held.len() == both.len() {
            break;
        }
    }

    // Change, delete, reconnect.
    let patch = json!({ "spec": { "conditions": ["=> region=r2"] } });
    rules.patch("orders", &PatchParams::default(), &Patch::Merge(patch)).await?;
    let held = client.next("ConditionRoute").await?;
    ensure!(held[1].1["conditions"] == json!(["=> region=r2"]), "{held:?}");
    rules.delete("orders", &DeleteParams::default()).await?;
    let held = client.next("ConditionRoute").await?;
    ensure!(keys(&held) == ["orders/rulecast-system"], "{held:?}");
    client.well(json!({ "do": "observe", "address": plane })).await?;
    client.well(json!({ "do": "send", "type": ROUTE })).await?;
    ensure!(client.next("ConditionRoute").await? == held);

    // What it provides it registers, for its own namespace.
    let gvk = GroupVersionKind::gvk("dubbo.apache.org", "v1alpha1", "ServiceNameMapping");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "servicenamemappings");
    let mappings: Api<DynamicObject> = Api::all_with(site.cluster.client(), &resource);
    for (namespace, success) in [("pay", false), ("shop", true)] {
        let register = json!({
            "do": "register", "address": plane, "namespace": namespace,
            "application": "old", "interfaces": ["com.example.Order"],
        });
        let answer = client.well(register).await?;
        ensure!(answer["success"] == success, "{answer}");
        let stored = mappings.list(&Default::default()).await?.items;
        ensure!(stored.len() == usize::from(success), "{stored:?}");
        for object in stored {
            ensure!(object.namespace().as_deref() == Some("shop"), "{object:?}");
            ensure!(object.data["spec"]["applicationNames"] == json!(["old"]), "{object:?}");
        }
    }
    Ok(())
}
