//! The pod webhook, called by a real API server with the bundled configuration.
#![cfg(feature = "kube")]

#[path = "webhook/admission.rs"]
mod admission;
#[path = "webhook/certificates.rs"]
mod certificates;
#[path = "webhook/dubbo.rs"]
mod dubbo;
#[path = "webhook/site.rs"]
mod site;
