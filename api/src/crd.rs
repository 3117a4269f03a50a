//! CustomResourceDefinitions of the kinds.
