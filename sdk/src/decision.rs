//! Decisions: which endpoints a call may use, and why.
