//! The certificate authority of Rulecast: root and intermediate, attestors, issuing.
