//! When the API server cannot be asked.

use rulecast_api::Code;
use rulecast_kube_tests::Proxy;

use crate::site::{Ca, Site, code, delete, new_key, pod, until};

#[tokio::test]
async fn tokens_wait_and_certificates_are_renewed() {
    let site = Site::new().await;
    let proxy = Proxy::start(site.cluster.addr()).await.expect("a proxy");
    let mut config = site.config();
    let through = site.cluster.kubeconfig_through(&site.kubeconfig, &proxy);
    config.cluster.kubeconfig = Some(through);
    let ca = Ca::start(config).await;
    let web = pod(&site.cluster, &site.namespace, "web-0", "web", None).await;
    let token = site.token(&web).await;
    let svid = site.join(&ca, &token).await.expect("joined");

    // Down.
    proxy.refuse(true);
    proxy.cut();
    let error = site.join(&ca, &token).await.expect_err("nobody can be asked");
    assert_eq!(error.code(), Code::AuthorityUnreachable, "{error}");
    assert!(error.is_temporary());
    let svid = ca.client().renew(&svid, &new_key(), None).await.expect("renewed");
    assert_eq!(ca.metric("rulecast_ca_unchecked_renewals_total").await, 1);
    assert!(ca.page("/readyz").await.expect("a page").starts_with("HTTP/1.1 200"));
    // Not even now is another name to be had.
    let other = format!("spiffe://td.test/ns/{}/sa/db", site.namespace.name());
    let csr = new_key().csr(Some(&other.parse().expect("a name"))).expect("csr");
    assert_eq!(code(ca.ask(&site, &[], csr, Some(&svid)).await), Code::CsrIdentity);
    proxy.refuse(false);
    until("an answer", async || site.join(&ca, &token).await.ok()).await;

    // Silent: told before the caller gives up.
    proxy.stall(true);
    let error = site.join(&ca, &token).await.expect_err("nobody answers");
    assert_eq!(error.code(), Code::AuthorityUnreachable, "{error}");
    assert!(error.message().contains("its log says why"), "by the authority: {error}");
    let svid = ca.client().renew(&svid, &new_key(), None).await.expect("renewed");
    proxy.stall(false);
    proxy.cut();
    until("an answer", async || site.join(&ca, &token).await.ok()).await;
    let unchecked = ca.metric("rulecast_ca_unchecked_renewals_total").await;
    assert!(unchecked >= 3, "{unchecked}");

    // And the look at the pod is back.
    delete(&site.cluster, &web, 0).await;
    assert_eq!(code(ca.client().renew(&svid, &new_key(), None).await), Code::PodGone);
    ca.stop().await;
}

#[tokio::test]
async fn it_starts_before_the_api_server() {
    let site = Site::new().await;
    let proxy = Proxy::start(site.cluster.addr()).await.expect("a proxy");
    proxy.refuse(true);
    let mut config = site.config();
    let through = site.cluster.kubeconfig_through(&site.kubeconfig, &proxy);
    config.cluster.kubeconfig = Some(through);
    let ca = Ca::start(config).await;
    let page = until("the reason", async || {
        ca.page("/readyz").await.filter(|page| page.contains("cannot be read"))
    })
    .await;
    assert!(page.starts_with("HTTP/1.1 503"), "{page}");
    proxy.refuse(false);
    ca.ready().await;
    let web = pod(&site.cluster, &site.namespace, "web-0", "web", None).await;
    site.join(&ca, &site.token(&web).await).await.expect("joined");
    ca.stop().await;
}
