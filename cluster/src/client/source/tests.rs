use tempfile::TempDir;

use super::*;

fn pem() -> String {
    rcgen::generate_simple_self_signed(["authority".to_owned()]).expect("made").cert.pem()
}

/// A folder with a CA, a token, and a kubeconfig that names them.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("folder");
    let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    put("ca.crt", &pem());
    put("token", "secret\n");
    put("namespace", "home\n");
    put(
        "kubeconfig",
        r#"
apiVersion: v1
kind: Config
clusters:
- { name: real, cluster: { server: "https://127.0.0.1:6443", certificate-authority: ca.crt } }
- { name: proxied, cluster: { server: "https://127.0.0.1:1", proxy-url: "http://127.0.0.1:2" } }
contexts:
- { name: good, context: { cluster: real, user: filed, namespace: there } }
- { name: behind, context: { cluster: proxied, user: filed } }
- { name: lost, context: { cluster: gone, user: filed } }
users:
- { name: filed, user: { tokenFile: token } }
"#,
    );
    folder
}

fn explicit(folder: &TempDir, context: Option<&str>) -> ClusterConfig {
    let kubeconfig = Some(folder.path().join("kubeconfig"));
    ClusterConfig { kubeconfig, context: context.map(str::to_owned) }
}

fn load(folder: &TempDir, context: Option<&str>) -> Result<Loaded, ClusterError> {
    Source::find(&explicit(folder, context), &Environment::default())?.load()
}

fn refused(result: Result<impl std::fmt::Debug, ClusterError>) -> String {
    result.expect_err("it cannot be used").to_string()
}

#[test]
fn a_kubeconfig_stands_on_the_files_that_it_names() {
    let folder = folder();
    let loaded = load(&folder, Some("good")).expect("it can be used");
    assert_eq!(loaded.config.cluster_url, "https://127.0.0.1:6443");
    assert_eq!(loaded.config.default_namespace, "there");
    assert_eq!(loaded.config.root_cert.as_ref().map(Vec::len), Some(1));
    let names: Vec<_> = loaded.files.iter().map(|f| f.path.file_name().expect("name")).collect();
    assert_eq!(names, ["kubeconfig", "ca.crt", "token"]);
    assert!(loaded.files.iter().all(|file| !file.changed()));

    let token = folder.path().join("token");
    fs::write(&token, "secret").expect("written");
    let changed: Vec<_> = loaded.files.iter().map(FileText::changed).collect();
    assert_eq!(changed, [false, false, true]);
    fs::remove_file(&token).expect("removed");
    assert!(!loaded.files[2].changed(), "what is gone says nothing else");
    assert!(!format!("{loaded:?}").contains("secret"));
}

#[test]
fn what_is_wrong_with_a_kubeconfig_is_said() {
    let folder = folder();
    let why = refused(load(&folder, None));
    assert!(why.contains("no current-context; give one of: good, behind, lost"), "{why}");
    let why = refused(load(&folder, Some("bad")));
    assert!(why.contains(r#"no context "bad", but: good, behind, lost"#), "{why}");
    let why = refused(load(&folder, Some("lost")));
    assert!(why.contains(r#"the cluster "gone""#), "{why}");
    let why = refused(load(&folder, Some("behind")));
    assert!(why.contains("proxies are not supported"), "{why}");
    fs::write(folder.path().join("ca.crt"), &pem()[..200]).expect("written");
    let why = refused(load(&folder, Some("good")));
    assert!(why.contains("certificate"), "{why}");
    fs::write(folder.path().join("ca.crt"), pem()).expect("written");
    fs::write(folder.path().join("token"), " \n").expect("written");
    let why = refused(load(&folder, Some("good")));
    assert!(why.contains("token: it is empty"), "{why}");
    fs::write(folder.path().join("kubeconfig"), "clusters: 7").expect("written");
    let why = refused(load(&folder, Some("good")));
    assert!(why.contains("kubeconfig: "), "{why}");
    // What it is instead may be secret.
    for text in ["users: [{name: a, user: {token: s3cret", "eyJs3cret.s3cret.s3cret", "- s3cret"] {
        fs::write(folder.path().join("kubeconfig"), text).expect("written");
        let why = refused(load(&folder, Some("good")));
        assert!(why.contains("is no kubeconfig") && !why.contains("s3cret"), "{why}");
    }
    fs::remove_file(folder.path().join("kubeconfig")).expect("removed");
    let why = refused(load(&folder, Some("good")));
    assert!(why.contains("No such file"), "{why}");
}

fn pod(folder: &TempDir, host: &str) -> Environment {
    Environment {
        host: Some(host.into()),
        port: Some("6443".into()),
        folder: folder.path().into(),
        ..Environment::default()
    }
}

#[test]
fn a_pod_uses_its_service_account() {
    let folder = folder();
    let source = Source::find(&ClusterConfig::default(), &pod(&folder, "fd00::1")).expect("found");
    let loaded = source.load().expect("it can be used");
    assert_eq!(loaded.config.cluster_url, "https://[fd00::1]:6443");
    assert_eq!(loaded.config.default_namespace, "home");
    assert_eq!(loaded.files.len(), 2);

    fs::write(folder.path().join("ca.crt"), "").expect("written");
    let why = refused(source.load());
    assert!(why.contains("ca.crt: it has no certificate"), "{why}");
    let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
    fs::write(folder.path().join("ca.crt"), broken).expect("written");
    let why = refused(source.load());
    assert!(why.contains("ca.crt: it is no PEM"), "{why}");
}

#[test]
fn what_is_named_goes_before_the_pod_and_the_pod_before_the_default() {
    let folder = folder();
    let kubeconfig = folder.path().join("kubeconfig");
    let mut env = pod(&folder, "10.0.0.1");
    env.kubeconfig = Some(kubeconfig.clone().into());
    let find = |config: &ClusterConfig, env: &Environment| Source::find(config, env);
    let files = |context: Option<&str>| Source::Kubeconfig {
        files: vec![kubeconfig.clone()],
        context: context.map(str::to_owned),
    };

    let found = find(&ClusterConfig::default(), &env).expect("found");
    assert!(matches!(found, Source::Pod { .. }), "{found:?}");
    assert_eq!(find(&explicit(&folder, None), &env).expect("found"), files(None));
    let context = ClusterConfig { kubeconfig: None, context: Some("good".into()) };
    assert_eq!(find(&context, &env).expect("found"), files(Some("good")));
    env.host = None;
    assert_eq!(find(&ClusterConfig::default(), &env).expect("found"), files(None));

    // As kubectl does, files of the list that are not there are passed over.
    let list = env::join_paths([&folder.path().join("none"), &kubeconfig]).expect("a list");
    env.kubeconfig = Some(list);
    assert_eq!(find(&ClusterConfig::default(), &env).expect("found"), files(None));
}

#[test]
fn without_any_the_message_says_what_was_looked_for() {
    let folder = folder();
    let mut env = pod(&folder, "10.0.0.1");
    env.folder = folder.path().join("none");
    env.home = Some(folder.path().into());
    let why = refused(Source::find(&ClusterConfig::default(), &env));
    assert!(why.contains("none/token is missing"), "{why}");
    assert!(why.contains(".kube/config does not exist"), "{why}");
    env.host = None;
    env.kubeconfig = Some("/no/such/file".into());
    let why = refused(Source::find(&ClusterConfig::default(), &env));
    assert!(why.contains("KUBERNETES_SERVICE_HOST is not set"), "{why}");
    assert!(why.contains("/no/such/file"), "{why}");
}
