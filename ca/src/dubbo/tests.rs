use std::{sync::Arc, time::Duration};

use rulecast_identity::{Peer, PeerIdentity, PrivateKey};
use tempfile::TempDir;

use super::*;
use crate::{
    Authority,
    authority::{AuthorityHandle, AuthorityUpdater},
    metrics::Metrics,
    service::Attestor,
    tokens::Tokens,
};

struct Site {
    dir: TempDir,
    service: DubboService,
    _updater: AuthorityUpdater,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("folder");
        let ca = dir.path().join("ca");
        crate::init(&ca, "td.example").expect("made");
        let (authority, updater) = AuthorityHandle::new(Authority::open(&ca).expect("opens"));
        let attestor = Attestor::JoinTokens(Tokens::new(ca.join("tokens")));
        let hour = Duration::from_secs(3600);
        let service = Service::new(authority, attestor, hour, hour, Metrics::default());
        Self { dir, service: DubboService::new(service, true), _updater: updater }
    }

    fn token(&self) -> String {
        let ca = self.dir.path().join("ca");
        let text = crate::create_token(&ca, "shop", "web", Duration::from_secs(60));
        text.expect("made")
    }

    async fn ask(
        &self,
        csr: &str,
        credential: Option<(&str, &str)>,
        holder: Option<PeerIdentity>,
    ) -> IdentityResponse {
        let message = IdentityRequest { csr: csr.into(), ..IdentityRequest::default() };
        let mut request = Request::new(message);
        if let Some((kind, token)) = credential {
            let bearer = format!("Bearer {token}").parse().expect("ASCII");
            request.metadata_mut().insert("authorization", bearer);
            request.metadata_mut().insert("authorization-type", kind.parse().expect("ASCII"));
        }
        let address = ([127, 0, 0, 1], 1).into();
        request.extensions_mut().insert(Peer::new(address, holder.map(Arc::new)));
        self.service.create_identity(request).await.expect("an answer").into_inner()
    }
}

fn csr() -> String {
    let der = PrivateKey::generate().expect("key").csr(None).expect("signs");
    pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", der))
}

#[tokio::test]
async fn a_token_gets_a_certificate_which_gets_the_next_one() {
    let site = Site::new();
    let first = site.ask(&csr(), Some(("rulecast-join-token", &site.token())), None).await;
    assert!(first.success && first.message.is_empty(), "{}", first.message);
    let chain = pem::parse_many(&first.cert_pem).expect("PEM");
    assert_eq!((chain.len(), first.trust_certs.len()), (2, 1));
    let holder = PeerIdentity::from_der(chain[0].contents()).expect("ours");
    assert_eq!(holder.spiffe.to_string(), "spiffe://td.example/ns/shop/app/web");
    assert!(pem::parse(&first.trust_certs[0]).is_ok_and(|root| root.tag() == "CERTIFICATE"));
    assert!(first.token.is_empty() && first.trusted_token_public_keys.is_empty());
    let end = holder.not_after.duration_since(std::time::UNIX_EPOCH).expect("later").as_millis();
    assert_eq!(u128::try_from(first.expire_time), Ok(end));
    assert!(first.refresh_time < first.expire_time && first.refresh_time > 1_600_000_000_000);

    let next = site.ask(&csr(), None, Some(holder)).await;
    assert!(next.success, "{}", next.message);
}

#[tokio::test]
async fn a_refusal_is_an_answer() {
    let site = Site::new();
    let good = csr();
    let token = site.token();
    let join = |token| Some(("rulecast-join-token", token));
    let certificate = pem::encode(&pem::Pem::new("CERTIFICATE", vec![1, 2, 3]));
    let cases = [
        ("no credential", &*good, None, "RC0401"),
        // There are no pods here, and that kind of token is nobody's.
        ("a pod's token", &good, Some(("dubbo-ca-token", "a.b.c")), "RC0401"),
        ("a token for tokens", &good, Some(("dubbo-jwt", "a.b.c")), "RC0401"),
        ("our own pods' token", &good, Some(("rulecast-kubernetes-token", "a.b.c")), "RC0401"),
        ("a wrong token", &good, join("AAAA"), "RC0402"),
        ("another wrong token", &good, join("rcjt1.AAAA"), "RC0402"),
        ("no request", "", join(&token), "RC0404"),
        ("a certificate", &certificate, join(&token), "RC0404"),
    ];
    for (what, csr, credential, code) in cases {
        let answer = site.ask(csr, credential, None).await;
        assert!(!answer.success && answer.cert_pem.is_empty(), "{what}");
        assert!(answer.message.starts_with(code), "{what}: {}", answer.message);
    }
    // None of it cost the token, of which the secret alone is enough.
    let secret = token.parse::<rulecast_identity::JoinToken>().expect("own token").bearer();
    assert!(site.ask(&good, join(&secret), None).await.success);
    assert!(!site.ask(&csr(), join(&token), None).await.success, "it serves once");
}
