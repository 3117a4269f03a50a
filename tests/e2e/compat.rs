//! A client of the Dubbo control plane, in another language: certificate, rules, mappings.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    python::Python,
    site::{Site, eventually, rule},
};

const ROUTE: &str = "dubbo.apache.org/v1alpha1/ConditionRoute";

/// Servers that such a client can verify: it knows them by DNS name.
async fn site() -> Result<Site> {
    Site::start_with(&["--names", "localhost", "--dds-names", "localhost"]).await
}

fn authority(site: &Site) -> String {
    format!("localhost:{}", site.ca.port())
}

fn plane(site: &Site) -> String {
    format!("localhost:{}", site.dds.port())
}

/// Join token in hand, the client gets its certificate.
async fn join(site: &Site, client: &mut Python, namespace: &str, app: &str) -> Result<Value> {
    let answer = client
        .well(json!({
            "do": "identity", "address": authority(site),
            "roots": fs::read_to_string(site.path("ca").join("root.pem"))?,
            "token": site.token(namespace, app)?, "kind": "rulecast-join-token",
        }))
        .await?;
    ensure!(answer["success"] == true, "{answer}");
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_the_old_wire_lives_its_life() -> Result<()> {
    let mut site = site().await?;
    let mut client = Python::start().await?;

    // A certificate: by token, then by certificate. What is refused is an answer too.
    let roots = fs::read_to_string(site.path("ca").join("root.pem"))?;
    let jwt = json!({
        "do": "identity", "address": authority(&site), "roots": roots,
        "token": "a.b.c", "kind": "dubbo-jwt",
    });
    let refused = client.well(jwt).await?;
    let message = refused["message"].as_str().unwrap_or_default();
    ensure!(refused.get("success").is_none() && message.starts_with("RC0401"), "{refused}");
    let first = join(&site, &mut client, "shop", "shop-frontend").await?;
    ensure!(first["uris"] == json!(["spiffe://e2e.test/ns/shop/app/shop-frontend"]), "{first}");
    ensure!(first["dns"] == json!([]), "{first}");
    ensure!(first.get("token").is_none() && first["trust_certs"].as_array().is_some(), "{first}");
    let next = client.well(json!({"do": "identity", "address": authority(&site)})).await?;
    ensure!(next["success"] == true && next["uris"] == first["uris"], "{next}");

    // Subscribe: answered also with nothing.
    client.well(json!({"do": "observe", "address": plane(&site)})).await?;
    client.well(json!({"do": "send", "type": ROUTE})).await?;
    ensure!(client.next("ConditionRoute").await?.is_empty());

    // Rules come, change and go; each time it is all there is.
    site.write_rule("a.yaml", &rule("a", 1, "method=x => region=r1"))?;
    let held = client.next("ConditionRoute").await?;
    let wanted = json!({
        "priority": 1, "enabled": true, "key": "com.example.a", "scope": "service",
        "conditions": ["method=x => region=r1"], "configVersion": "v3.0",
    });
    ensure!(held == [("a/shop".to_owned(), wanted)], "{held:?}");
    site.write_rule("b.yaml", &rule("b", 1, "method=x => region=r1"))?;
    let keys: Vec<_> = client.next("ConditionRoute").await?.into_iter().map(|(k, _)| k).collect();
    ensure!(keys == ["a/shop", "b/shop"], "{keys:?}");
    site.write_rule("a.yaml", &rule("a", 2, "method=y => region=r2"))?;
    let held = client.next("ConditionRoute").await?;
    ensure!(held.len() == 2 && held[0].1["conditions"] == json!(["method=y => region=r2"]));
    fs::remove_file(site.path("rules").join("a.yaml"))?;
    let held = client.next("ConditionRoute").await?;
    ensure!(held.len() == 1 && held[0].0 == "b/shop", "{held:?}");

    // Asked again: again.
    client.well(json!({"do": "send", "type": ROUTE})).await?;
    ensure!(client.next("ConditionRoute").await? == held);

    // What that wire cannot say is not sent, and its status says so.
    let newer = "apiVersion: dubbo.apache.org/v1alpha1\nkind: ConditionRoute\n\
                 metadata: {name: newer, namespace: shop}\n\
                 spec: {configVersion: v3.1, scope: service, key: com.example.c, \
                 conditions: [{from: {match: \"\"}, to: [{match: region=r1}]}]}\n";
    site.write_rule("newer.yaml", newer)?;
    ensure!(client.next("ConditionRoute").await? == held, "nothing else has changed");
    eventually(async || {
        let status = site.status().await?;
        let of = |key: &str| {
            let rule = status.rules.iter().find(|rule| rule.key == key);
            rule.with_context(|| format!("{key}: {status:?}"))
        };
        let (newer, older) = (of("newer/shop")?, of("b/shop")?);
        ensure!((newer.matched, newer.applied, newer.rejected) == (1, 0, 1), "{newer:?}");
        ensure!(format!("{newer:?}").contains("RC0508"), "{newer:?}");
        ensure!((older.matched, older.applied, older.rejected) == (1, 1, 0), "{older:?}");
        Ok(())
    })
    .await?;
    fs::remove_file(site.path("rules").join("newer.yaml"))?;
    ensure!(client.next("ConditionRoute").await? == held);

    // The plane goes and comes back; the client connects again and gets the state.
    site.stop_plane().await?;
    let end = client.order(json!({"do": "next"})).await?;
    ensure!(end["end"] == "UNAVAILABLE", "{end}");
    site.start_plane().await?;
    client.well(json!({"do": "observe", "address": plane(&site)})).await?;
    client.well(json!({"do": "send", "type": ROUTE})).await?;
    ensure!(client.next("ConditionRoute").await? == held);

    // Other types are none.
    client.well(json!({"do": "send", "type": "rulecast.io/v1alpha1/RateLimit"})).await?;
    let end = client.order(json!({"do": "next"})).await?;
    ensure!(end["end"] == "INVALID_ARGUMENT", "{end}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interfaces_are_registered_for_the_own_namespace_alone() -> Result<()> {
    const MAPPING: &str = "dubbo.apache.org/v1alpha1/ServiceNameMapping";
    let site = site().await?;
    let mut client = Python::start().await?;
    join(&site, &mut client, "shop", "shop-backend").await?;
    client.well(json!({"do": "observe", "address": plane(&site)})).await?;
    client.well(json!({"do": "send", "type": MAPPING})).await?;
    ensure!(client.next("ServiceNameMapping").await?.is_empty());

    let register = |namespace: &str, application: &str| {
        json!({
            "do": "register", "address": plane(&site), "namespace": namespace,
            "application": application, "interfaces": ["com.example.Order"],
        })
    };
    let refused = client.well(register("pay", "shop-backend")).await?;
    let message = refused["message"].as_str().unwrap_or_default();
    ensure!(refused["success"] == false && message.starts_with("RC0414"), "{refused}");
    for (application, wanted) in
        [("shop-backend", json!(["shop-backend"])), ("shop", json!(["shop", "shop-backend"]))]
    {
        let answer = client.well(register("shop", application)).await?;
        ensure!(answer["success"] == true, "{answer}");
        // Stored when it is answered.
        let file = site.path("rules").join("servicenamemappings/shop/com.example.order.yaml");
        ensure!(fs::read_to_string(file)?.contains(application));
        let held = client.next("ServiceNameMapping").await?;
        let wanted = json!({"interfaceName": "com.example.Order", "applicationNames": wanted});
        ensure!(held == [("com.example.order/shop".to_owned(), wanted)], "{held:?}");
    }
    Ok(())
}

/// A rule of each kind, and what of it such a client gets in the namespace shop.
const KINDS: [(&str, &str, &str); 5] = [
    (
        "AuthenticationPolicy",
        "{action: STRICT, selector: [{namespaces: [shop]}], \
         portLevel: [{port: 8081, action: PERMISSIVE}]}",
        r#"{"action": "STRICT", "portLevel": [{"port": 8081, "action": "PERMISSIVE"}]}"#,
    ),
    (
        "AuthorizationPolicy",
        "{action: DENY, matchType: allMatch, samples: 50, order: 2, rules: [\
         {from: {notNamespaces: [pay]}, to: {namespaces: [shop]}, \
          when: [{key: method, values: [{type: regex, value: 'get.*'}]}]}, \
         {from: {namespaces: [pay]}, to: {principals: ['e2e.test/ns/shop/app/other']}}]}",
        r#"{"action": "DENY", "matchType": "allMatch", "samples": 50.0, "order": 2.0, "rules": [
            {"from": {"notNamespaces": ["pay"]},
             "when": [{"key": "method", "values": [{"type": "regex", "value": "get.*"}]}]}]}"#,
    ),
    (
        "DynamicConfig",
        "{configVersion: v3.0, scope: service, key: com.example.Stock, configs: [\
         {side: consumer, parameters: {timeout: '2000'}, \
          match: {address: {cidr: 10.0.0.0/8}, application: {oneof: [{exact: reports}]}}}]}",
        r#"{"configVersion": "v3.0", "scope": "service", "key": "com.example.Stock",
            "enabled": true, "configs": [
            {"side": "consumer", "parameters": {"timeout": "2000"}, "enabled": true,
             "match": {"address": {"cird": "10.0.0.0/8"},
                       "application": {"oneof": [{"exact": "reports"}]}}}]}"#,
    ),
    (
        "ServiceNameMapping",
        "{interfaceName: com.example.Order, applicationNames: [orders]}",
        r#"{"interfaceName": "com.example.Order", "applicationNames": ["orders"]}"#,
    ),
    (
        "TagRoute",
        "{configVersion: v3.0, key: detail, force: true, tags: [\
         {name: gray, match: [{key: env, value: {exact: gray}}]}, \
         {name: lab, addresses: ['10.8.4.17:20880']}]}",
        r#"{"configVersion": "v3.0", "key": "detail", "force": true, "enabled": true,
            "runtime": true, "tags": [
            {"name": "gray", "match": [{"key": "env", "value": {"exact": "gray"}}]},
            {"name": "lab", "addresses": ["10.8.4.17:20880"]}]}"#,
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_reaches_it_in_its_own_words() -> Result<()> {
    let site = site().await?;
    let mut client = Python::start().await?;
    join(&site, &mut client, "shop", "shop-frontend").await?;
    client.well(json!({"do": "observe", "address": plane(&site)})).await?;
    for (kind, spec, wanted) in KINDS {
        client
            .well(json!({"do": "send", "type": format!("dubbo.apache.org/v1alpha1/{kind}")}))
            .await?;
        ensure!(client.next(kind).await?.is_empty());
        let document = |namespace: &str| {
            format!(
                "apiVersion: dubbo.apache.org/v1alpha1\nkind: {kind}\n\
                 metadata: {{name: one, namespace: {namespace}}}\nspec: {spec}\n"
            )
        };
        // The policies of others are not this client's to know.
        let mut text = document("shop");
        if kind.starts_with("Auth") {
            text = format!("{text}---\n{}", document("pay"));
        }
        site.write_rule(&format!("{kind}.yaml"), &text)?;
        let held = client.next(kind).await.with_context(|| format!("{kind}\n{}", site.logs()))?;
        let wanted: Value = serde_json::from_str(wanted)?;
        ensure!(held == [("one/shop".to_owned(), wanted)], "{kind}: {held:?}");
    }
    Ok(())
}
