//! Workload identity: SPIFFE names, keys, certificates, renewal and the TLS configurations made of them.
