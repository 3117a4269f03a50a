//! Manifests: rules as people write them, in YAML or JSON.
