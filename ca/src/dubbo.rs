//! Certificates for clients of the Dubbo control plane.
//!
//! The same attestation and the same certificates; another shape of question and answer. As
//! on that wire, a refusal is an answer that says so.

use rulecast_api::{
    Code,
    proto::{
        dubbo::v1alpha1::{
            IdentityRequest, IdentityResponse,
            authority_service_server::{AuthorityService, AuthorityServiceServer},
        },
        identity::v1::{IssueCertificateRequest, IssueCertificateResponse},
    },
};
use tonic::{Request, Response, Status};

use crate::{
    CaError,
    csr::MAX_CSR,
    service::{self, Service, Wire},
};

/// Largest request message in bytes: a signing request in PEM, and metadata that nobody reads.
const MAX_REQUEST: usize = 2 * MAX_CSR + 4096;

/// What is done for clients of the Dubbo control plane, besides answering those who show what
/// Rulecast's own clients show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DubboConfig {
    /// In a cluster: take service-account tokens of audience `dubbo-ca`.
    pub tokens: bool,
    /// DNS names and IP addresses that the authority's certificate has besides its SPIFFE
    /// name: such clients know servers by these.
    pub names: Vec<String>,
    /// The same for the certificate of the plane.
    pub dds_names: Vec<String>,
}

/// `dubbo.apache.org.v1alpha1.AuthorityService`. Clones share everything.
#[derive(Clone, Debug)]
pub(crate) struct DubboService {
    service: Service,
    tokens: bool,
}

impl DubboService {
    pub(crate) fn new(service: Service, tokens: bool) -> Self {
        Self { service, tokens }
    }

    /// For tonic, with the limits of its messages.
    pub(crate) fn into_server(self) -> AuthorityServiceServer<Self> {
        AuthorityServiceServer::new(self).max_decoding_message_size(MAX_REQUEST)
    }
}

#[tonic::async_trait]
impl AuthorityService for DubboService {
    async fn create_identity(
        &self,
        request: Request<IdentityRequest>,
    ) -> Result<Response<IdentityResponse>, Status> {
        let peer = service::peer(&request)?;
        let (metadata, _, message) = request.into_parts();
        let wire = Wire::Dubbo { tokens: self.tokens };
        let message = asked(&message.csr);
        let certified = self.service.certify(wire, &metadata, &peer, message).await;
        Ok(Response::new(certified.map_or_else(|error| refused(&error), answered)))
    }
}

/// A request in our own terms. Its type and metadata carry no authority.
fn asked(csr: &str) -> Result<IssueCertificateRequest, CaError> {
    let bad = |why: &str| {
        CaError::new(
            Code::CsrInvalid,
            format!("the certificate signing request cannot be used: {why}; send PKCS#10 in PEM"),
        )
    };
    let block = pem::parse(csr).map_err(|e| bad(&e.to_string()))?;
    if !matches!(block.tag(), "CERTIFICATE REQUEST" | "NEW CERTIFICATE REQUEST") {
        return Err(bad("it is a PEM of something else"));
    }
    let csr = block.into_contents().into();
    Ok(IssueCertificateRequest { csr, ..IssueCertificateRequest::default() })
}

fn answered(issued: IssueCertificateResponse) -> IdentityResponse {
    let block = |der: &[u8]| {
        let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
        pem::encode_config(&pem::Pem::new("CERTIFICATE", der), lines)
    };
    let roots = issued.bundle.map(|bundle| bundle.roots).unwrap_or_default();
    IdentityResponse {
        success: true,
        cert_pem: issued.chain.iter().map(|der| block(der)).collect(),
        trust_certs: roots.iter().map(|der| block(der)).collect(),
        // That wire gave out a token that bought certificates, which bought tokens: whoever
        // got hold of one once was never without. Who has a certificate needs none.
        token: String::new(),
        trusted_token_public_keys: Vec::new(),
        refresh_time: issued.renew_at.saturating_mul(1000),
        expire_time: issued.not_after.saturating_mul(1000),
        message: String::new(),
    }
}

fn refused(error: &CaError) -> IdentityResponse {
    let message = service::status(error).message().to_owned();
    IdentityResponse { success: false, message, ..IdentityResponse::default() }
}

#[cfg(test)]
mod tests;
