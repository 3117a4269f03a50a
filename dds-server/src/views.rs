//! Views of the index, one per scope and kind, kept current.
