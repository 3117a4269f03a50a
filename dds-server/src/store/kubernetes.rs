//! Rules as objects of a Kubernetes API server.
