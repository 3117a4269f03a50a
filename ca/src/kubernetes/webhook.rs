//! Mounts trust into pods that ask for it.
