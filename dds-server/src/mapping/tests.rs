use std::{collections::BTreeSet, sync::Arc};

use rulecast_api::{kind::KINDS, manifest::Format};
use rulecast_identity::{Peer, PeerIdentity};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::store::{FileStore, FileStoreConfig};

const KIND: Kind = Kind::SERVICE_NAME_MAPPING;

struct Site {
    folder: TempDir,
    _state: TempDir,
    index: Index,
    service: MappingService,
    stop: CancellationToken,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Site {
    async fn new() -> Self {
        let (folder, state) = (tempfile::tempdir(), tempfile::tempdir());
        let (folder, state) = (folder.expect("folder"), state.expect("folder"));
        let config = FileStoreConfig::new(folder.path(), state.path(), KINDS);
        let store: Arc<dyn Store> = Arc::new(FileStore::open(config).expect("opens"));
        let index = Index::new(KINDS, store.lineage());
        let stop = CancellationToken::new();
        tokio::spawn(index.clone().run(store.clone(), stop.clone()));
        let service = MappingService::new(store, index.clone(), KINDS).expect("served");
        let site = Self { folder, _state: state, index, service, stop };
        site.until(|snapshot| snapshot.listed).await;
        site
    }

    async fn until(&self, holds: impl Fn(&Snapshot) -> bool) {
        let mut changes = self.index.changes();
        let wait = async {
            while !holds(&self.index.snapshot()) {
                changes.changed().await.expect("the index lives");
            }
        };
        tokio::time::timeout(LIMIT, wait).await.expect("in time");
    }

    /// Mappings as they are in the folder: name and namespace, interface, applications.
    fn stored(&self) -> BTreeMap<String, (String, BTreeSet<String>)> {
        let mut found = BTreeMap::new();
        let mut paths = vec![self.folder.path().to_owned()];
        while let Some(path) = paths.pop() {
            if let Ok(entries) = std::fs::read_dir(&path) {
                paths.extend(entries.map(|entry| entry.expect("entry").path()));
                continue;
            }
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            if let Some(format) = Format::of(name).filter(|_| !name.starts_with('.')) {
                let text = std::fs::read(&path).expect("readable");
                for document in rulecast_api::manifest::parse(KINDS, &text, format).documents {
                    let resource = document.outcome.expect("a rule");
                    let spec: &dyn Any = &*resource.spec;
                    let spec = spec.downcast_ref::<ServiceNameMappingSpec>().expect("a mapping");
                    let held = (spec.interface.clone(), spec.applications.clone());
                    found.insert(resource.id.key(), held);
                }
            }
        }
        found
    }

    async fn ask(&self, caller: &str, namespace: &str) -> ServiceMappingResponse {
        let mut request = Request::new(ServiceMappingRequest {
            namespace: namespace.into(),
            application_name: "app".into(),
            interface_names: vec!["com.example.Order".into()],
        });
        let identity = PeerIdentity {
            spiffe: caller.parse().expect("an identity"),
            facts: None,
            not_before: std::time::SystemTime::UNIX_EPOCH,
            not_after: std::time::SystemTime::now() + LIMIT,
            public_key: Vec::new(),
            serial: String::new(),
            fingerprint: String::new(),
        };
        let address = ([127, 0, 0, 1], 1).into();
        request.extensions_mut().insert(Peer::new(address, Some(Arc::new(identity))));
        let answer = self.service.register_service_app_mapping(request).await;
        answer.expect("an answer").into_inner()
    }
}

fn applications(names: impl IntoIterator<Item = impl Into<String>>) -> BTreeSet<String> {
    names.into_iter().map(Into::into).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_at_once_lose_nothing() {
    let site = Site::new().await;
    let interfaces: Vec<String> = ["com.example.Order", "com.example.Stock"].map(Into::into).into();
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..50 {
        let (service, interfaces) = (site.service.clone(), interfaces.clone());
        clients.spawn(async move {
            let application = format!("app-{client}");
            service.register("shop", &application, &interfaces).await
        });
    }
    while let Some(client) = clients.join_next().await {
        client.expect("no panic").expect("registered");
    }
    // When the last is answered, all of it is stored.
    let all = applications((0..50).map(|client| format!("app-{client}")));
    let stored = site.stored();
    assert_eq!(stored.len(), 2);
    assert_eq!(stored["com.example.order/shop"], ("com.example.Order".into(), all.clone()));
    assert_eq!(stored["com.example.stock/shop"], ("com.example.Stock".into(), all));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_planes_on_one_store_lose_nothing() {
    let site = Site::new().await;
    // Another one, with an index of its own.
    let store = site.service.inner.store.clone();
    let index = Index::new(KINDS, store.lineage());
    tokio::spawn(index.clone().run(store.clone(), site.stop.clone()));
    let other = MappingService::new(store, index.clone(), KINDS).expect("served");
    let mut changes = index.changes();
    while !index.snapshot().listed {
        changes.changed().await.expect("the index lives");
    }
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..20 {
        let service = if client % 2 == 0 { site.service.clone() } else { other.clone() };
        clients.spawn(async move {
            service.register("shop", &format!("app-{client}"), &["com.A".into()]).await
        });
    }
    while let Some(client) = clients.join_next().await {
        client.expect("no panic").expect("registered");
    }
    let all = applications((0..20).map(|client| format!("app-{client}")));
    assert_eq!(site.stored()["com.a/shop"], ("com.A".into(), all));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_wrote_stays() {
    let site = Site::new().await;
    // A person's mapping, and one whose name another interface would have too.
    let text = "apiVersion: dubbo.apache.org/v1alpha1\nkind: ServiceNameMapping\n\
                metadata: {name: com.example.order, namespace: shop, labels: {mine: 'yes'}}\n\
                spec: {interfaceName: com.example.Order, applicationNames: [first]}\n";
    std::fs::write(site.folder.path().join("mine.yaml"), text).expect("written");
    site.until(|snapshot| snapshot.kind(KIND).len() == 1).await;
    let register =
        async |interface: &str| site.service.register("shop", "second", &[interface.into()]).await;
    register("com.example.Order").await.expect("registered");
    register("com.example.ORDER").await.expect("registered");
    register("com.example.Order").await.expect("and again");
    let stored = site.stored();
    assert_eq!(
        stored["com.example.order/shop"],
        ("com.example.Order".into(), applications(["first", "second"]))
    );
    let others: Vec<_> =
        stored.iter().filter(|(key, _)| *key != "com.example.order/shop").collect();
    assert_eq!(others.len(), 1);
    assert!(others[0].0.starts_with("com-example-order-"), "{}", others[0].0);
    assert_eq!(*others[0].1, ("com.example.ORDER".into(), applications(["second"])));
    let mine = site.index.snapshot().kind(KIND)["com.example.order/shop"].clone();
    assert_eq!(mine.resource.labels["mine"], "yes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_for_the_callers_own_namespace() {
    let site = Site::new().await;
    let caller = "spiffe://td/ns/shop/app/web";
    for other in ["pay", "rulecast-system", "shop ", "SHOP", "shop\n"] {
        let answer = site.ask(caller, other).await;
        assert!(!answer.success && answer.message.starts_with("RC0414: "), "{answer:?}");
    }
    assert!(site.stored().is_empty());
    for own in ["shop", ""] {
        assert!(site.ask(caller, own).await.success);
    }
    assert_eq!(site.stored().into_keys().collect::<Vec<_>>(), ["com.example.order/shop"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_of_what_is_wrong() {
    let site = Site::new().await;
    let many = vec!["com.A".to_owned(); MAX_INTERFACES + 1];
    for (application, interfaces) in [
        ("", vec!["com.A".to_owned()]),
        ("a b", vec!["com.A".to_owned()]),
        ("app", vec!["com.A".to_owned(), String::new()]),
        ("app", vec!["com.A".to_owned(), "g/com.B:1".to_owned()]),
        ("app", many),
    ] {
        let error = site.service.register("shop", application, &interfaces).await;
        assert!(matches!(error, Err(MappingError::Invalid(_))), "{error:?}");
    }
    assert!(site.stored().is_empty());
    site.service.register("shop", "app", &[]).await.expect("nothing is well");
}

#[test]
fn every_interface_has_a_name_that_objects_may_have() {
    let long = "a.".repeat(400) + "B";
    for interface in
        ["com.example.Order", "Order", "com.Foo$Bar", "..", "com..A", "Überfluß", "-a-", "_", &long]
    {
        for name in names(interface) {
            assert!(rulecast_api::manifest::valid_name(&name), "{interface}: {name}");
        }
    }
    assert_eq!(names("com.example.Order")[0], "com.example.order");
    assert_ne!(names("com.example.Order")[1], names("com.example.ORDER")[1]);
    assert_ne!(names("a-b")[0], names("a_b")[0]);
}
