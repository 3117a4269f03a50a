//! The rules of the story that `demo --once` plays.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

/// Where calls of Orders go, by one condition.
pub(super) fn route(condition: &str) -> String {
    format!(
        "apiVersion: dubbo.apache.org/v1alpha1\nkind: ConditionRoute\nmetadata:\n  name: orders\n  namespace: shop\n\
         spec:\n  configVersion: v3.0\n  scope: service\n  key: shop.v1.Orders\n  force: true\n  conditions:\n    - \"{condition}\"\n"
    )
}

/// A tenth of the calls of Orders go to v2.
pub(super) const CANARY: &str = "\
apiVersion: dubbo.apache.org/v1alpha1
kind: ConditionRoute
metadata: {name: orders, namespace: shop}
spec:
  configVersion: v3.1
  scope: service
  key: shop.v1.Orders
  conditions:
    - to:
        - {match: version=v1, weight: 90}
        - {match: version=v2, weight: 10}
";

/// Who may not call Stock: everybody but these.
pub(super) fn callers(of: &[&str]) -> String {
    let of = of.iter().map(|app| format!("spiffe://shop.example/ns/shop/app/{app}"));
    format!(
        "apiVersion: dubbo.apache.org/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {{name: stock-callers, namespace: shop}}\n\
         spec:\n  action: DENY\n  rules:\n    - from: {{notPrincipals: [{}]}}\n      \
         to: {{principals: [spiffe://shop.example/ns/shop/app/shop-stock]}}\n",
        of.collect::<Vec<_>>().join(", ")
    )
}

/// Customers other than alice may make five calls a minute.
pub(super) const LIMIT: &str = "\
apiVersion: rulecast.io/v1alpha1
kind: RateLimit
metadata: {name: customers, namespace: shop}
spec:
  selector:
    - principals: [spiffe://shop.example/ns/shop/app/shop-gateway]
  match:
    - {key: 'request.headers[x-customer]', notValues: [{type: equals, value: alice}]}
  keys: ['request.headers[x-customer]']
  requests: 5
  per: 1m
";

/// A folder with the rules that the story begins with.
pub(super) fn folder(work: &Path) -> Result<PathBuf> {
    let dir = work.join("rules");
    fs::create_dir_all(&dir)?;
    let name = "mutual-tls.yaml";
    fs::write(dir.join(name), include_str!("../../../../examples/rules/mutual-tls.yaml"))?;
    Ok(dir)
}
