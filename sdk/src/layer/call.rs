use http::{Extensions, HeaderMap, HeaderName, Method, Request, Uri};
use rulecast_identity::Peer;
use tonic::transport::server::TcpConnectInfo;

use super::{Attributes, guard::Protocol};
use crate::decision::Inbound;

/// What of a request decides; its body does not.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    method: &'a Method,
    uri: &'a Uri,
    pub(super) headers: &'a HeaderMap,
    extensions: &'a Extensions,
    pub(super) peer: Option<&'a Peer>,
}

impl<'a> Head<'a> {
    pub(super) fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
            peer: request.extensions().get(),
        }
    }

    pub(super) fn path(self) -> &'a str {
        self.uri.path()
    }

    /// What rules may ask of it.
    pub(super) fn inbound(
        self,
        protocol: Protocol,
        port: Option<u16>,
        request_id: &HeaderName,
    ) -> Inbound<'a> {
        let mut call = Inbound::new().headers(self.headers).path(self.path());
        match protocol {
            Protocol::Http => call = call.method(self.method.as_str()),
            Protocol::Grpc => {
                if let Some(method) = rpc(self.path()) {
                    call = call.method(method);
                }
            }
        }
        let (remote, local) = match self.peer {
            Some(peer) => (Some(peer.address), peer.local()),
            None => match self.extensions.get::<TcpConnectInfo>() {
                Some(info) => (info.remote_addr(), info.local_addr()),
                None => (None, None),
            },
        };
        if let Some(remote) = remote {
            call = call.ip(remote.ip());
        }
        if let Some(port) = port.or(local.map(|local| local.port())) {
            call = call.port(port);
        }
        let proven = self
            .peer
            .and_then(|peer| Some((peer.principal()?, peer.namespace()?, peer.application()?)));
        if let Some((principal, namespace, application)) = proven {
            call = call.principal(principal).namespace(namespace).source_application(application);
        }
        if let Some(id) = self.headers.get(request_id).and_then(|id| id.to_str().ok()) {
            call = call.request_id(id);
        }
        match self.extensions.get::<Attributes>() {
            Some(attributes) => call.attributes(attributes),
            None => call,
        }
    }
}

/// The method of an RPC's path, `/package.Service/Method`, as gRPC servers read it.
fn rpc(path: &str) -> Option<&str> {
    let (_, method) = path.strip_prefix('/')?.split_once('/')?;
    Some(method).filter(|method| !method.is_empty())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rulecast_identity::{PeerIdentity, PrivateKey};

    use super::*;
    use crate::decision::{Attribute, Call as _};

    const ID: HeaderName = HeaderName::from_static("x-request-id");

    /// A peer with a certificate of this name.
    fn peer(spiffe: Option<&str>) -> Peer {
        let identity = spiffe.map(|name| {
            let mut params = rcgen::CertificateParams::default();
            params.subject_alt_names = vec![rcgen::SanType::URI(name.try_into().expect("ASCII"))];
            let key = PrivateKey::generate().expect("a key");
            let certificate = params.self_signed(key.pair()).expect("signs");
            Arc::new(PeerIdentity::from_der(certificate.der()).expect("ours"))
        });
        let address = |text: &str| text.parse().expect("an address");
        Peer::new(address("10.0.0.7:4711"), identity).at(address("10.0.0.8:8080"))
    }

    fn request() -> http::request::Builder {
        Request::post("http://shop.test/shop.v1.Orders/GetOrder?x=1")
            .header("x-user", "alice")
            .header("x-user", "bob")
            .header("x-request-id", "r1")
            // What only a proxy of old would believe.
            .header("x-forwarded-for", "10.9.9.9")
            .header("x-forwarded-client-cert", "URI=spiffe://td/ns/admin/app/root")
    }

    fn assert_values(call: Inbound<'_>, expected: &[(&str, Option<&str>)]) {
        for (name, value) in expected {
            let attribute = Attribute::parse(name);
            assert_eq!(call.value(&attribute), value.map(str::as_bytes), "{name}");
        }
    }

    #[test]
    fn a_call_is_what_server_peer_and_application_say() {
        let id = "spiffe://td/ns/web/app/front";
        let mut request = request().body(()).expect("a request");
        request.extensions_mut().insert(peer(Some(id)));
        request.extensions_mut().insert(Attributes::new().with("tier", "gold"));
        let call = Head::of(&request).inbound(Protocol::Grpc, Some(8443), &ID);
        assert_values(
            call,
            &[
                ("method", Some("GetOrder")),
                ("path", Some("/shop.v1.Orders/GetOrder")),
                ("request.headers[X-User]", Some("alice")),
                ("request.id", Some("r1")),
                ("source.principal", Some("td/ns/web/app/front")),
                ("source.namespace", Some("web")),
                ("source.application", Some("front")),
                ("source.ip", Some("10.0.0.7")),
                ("destination.port", Some("8443")),
                ("extension[tier]", Some("gold")),
            ],
        );
        let call = Head::of(&request).inbound(Protocol::Http, None, &ID);
        assert_values(call, &[("method", Some("POST")), ("destination.port", Some("8080"))]);
    }

    #[test]
    fn headers_prove_nobody() {
        let mut request = request().body(()).expect("a request");
        let unproven = [
            ("source.principal", None),
            ("source.namespace", None),
            ("source.application", None),
            ("source.ip", None),
        ];
        let call = Head::of(&request).inbound(Protocol::Http, None, &ID);
        assert_values(call, &unproven);
        request.extensions_mut().insert(peer(None));
        let call = Head::of(&request).inbound(Protocol::Http, None, &ID);
        assert_values(call, &unproven[..3]);
        assert_values(call, &[("source.ip", Some("10.0.0.7"))]);
    }

    #[test]
    fn the_content_type_does_not_say_what_a_method_is() {
        let request = request().header("content-type", "application/grpc");
        let request = request.body(()).expect("a request");
        let call = Head::of(&request).inbound(Protocol::Http, None, &ID);
        assert_values(call, &[("method", Some("POST"))]);
    }

    #[test]
    fn the_method_of_an_rpc_is_all_behind_the_service() {
        for (path, method) in [
            ("/shop.v1.Orders/GetOrder", Some("GetOrder")),
            ("/Orders/GetOrder", Some("GetOrder")),
            ("/Orders/Get/Order", Some("Get/Order")),
            ("/Orders//GetOrder", Some("/GetOrder")),
            ("/Orders/", None),
            ("/Orders", None),
            ("/", None),
            ("*", None),
            ("", None),
        ] {
            assert_eq!(rpc(path), method, "{path}");
        }
    }
}
